package kafka

// partitionOf chooses the partition of a key by its canonical form, so that keys
// which are equal for the server go to the same one however they are written:
// 1.0 and 1.00, -0 and 0. A record without key goes to the first.
func partitionOf(canonical []byte, partitions int32) int32 {
	if canonical == nil || partitions < 2 {
		return 0
	}
	h := uint64(14695981039346656037) // FNV-1a, 64 bits
	for _, c := range canonical {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return int32(h % uint64(partitions))
}
