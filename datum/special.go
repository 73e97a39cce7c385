package datum

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"net/netip"
	"strconv"
)

// Address families of inet in binary form (utils/inet.h).
const (
	familyInet  = 2
	familyInet6 = 3
)

// inetText: family, bits of the netmask, whether it is a cidr, length of the
// address, address. A cidr shows its netmask always.
func inetText(dst, raw []byte) ([]byte, error) {
	if len(raw) < 4 || len(raw) != 4+int(raw[3]) {
		return dst, errBinary
	}
	addr, ok := netip.AddrFromSlice(raw[4:])
	if !ok || (raw[0] == familyInet) != addr.Is4() || raw[0] != familyInet && raw[0] != familyInet6 {
		return dst, errBinary
	}
	if addr.Is4() {
		dst = addr.AppendTo(dst)
	} else {
		dst = appendIPv6(dst, addr)
	}
	if raw[2] != 0 || int(raw[1]) != addr.BitLen() {
		dst = strconv.AppendUint(append(dst, '/'), uint64(raw[1]), 10)
	}
	return dst, nil
}

// appendIPv6 writes an address as pg_inet_net_ntop does: the longest run of at
// least two zero groups is cut, and the last 32 bits are dotted when all before
// them is zero, or zero but for a group ffff.
func appendIPv6(dst []byte, addr netip.Addr) []byte {
	b := addr.As16()
	group := func(i int) uint16 { return binary.BigEndian.Uint16(b[2*i:]) }
	best, bestLen := -1, 1
	for i := 0; i < 8; {
		j := i
		for j < 8 && group(j) == 0 {
			j++
		}
		if j-i > bestLen {
			best, bestLen = i, j-i
		}
		i = j + 1
	}
	for i := 0; i < 8; i++ {
		if i == best {
			dst = append(dst, ':')
			i += bestLen - 1
			if i == 7 {
				dst = append(dst, ':')
			}
			continue
		}
		if i > 0 {
			dst = append(dst, ':')
		}
		if i == 6 && best == 0 && (bestLen == 6 || bestLen == 7 && group(7) != 1 || bestLen == 5 && group(5) == 0xFFFF) {
			return netip.AddrFrom4([4]byte(b[12:])).AppendTo(dst)
		}
		dst = strconv.AppendUint(dst, uint64(group(i)), 16)
	}
	return dst
}

func appendMAC(dst, raw []byte) []byte {
	for i := range raw {
		if i > 0 {
			dst = append(dst, ':')
		}
		dst = hex.AppendEncode(dst, raw[i:i+1])
	}
	return dst
}

func float8At(raw []byte) float64 { return math.Float64frombits(binary.BigEndian.Uint64(raw)) }

func appendPair(dst, raw []byte) []byte {
	dst = appendFloat(dst, float8At(raw), 64)
	return appendFloat(append(dst, ','), float8At(raw[8:]), 64)
}

func appendPoint(dst, raw []byte) []byte {
	return append(appendPair(append(dst, '('), raw), ')')
}

// appendPoints writes points with commas between.
func appendPoints(dst, raw []byte) []byte {
	for i := 0; i < len(raw); i += 16 {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendPoint(dst, raw[i:])
	}
	return dst
}

func lsegText(dst, raw []byte) []byte { return append(appendPoints(append(dst, '['), raw), ']') }

func boxText(dst, raw []byte) []byte { return appendPoints(dst, raw) }

func lineText(dst, raw []byte) []byte {
	dst = appendPair(append(dst, '{'), raw)
	return append(appendFloat(append(dst, ','), float8At(raw[16:]), 64), '}')
}

func circleText(dst, raw []byte) []byte {
	dst = appendPoint(append(dst, '<'), raw[:16])
	return append(appendFloat(append(dst, ','), float8At(raw[16:]), 64), '>')
}

// pathText: whether it is closed, number of points, points.
func pathText(dst, raw []byte) ([]byte, error) {
	if len(raw) < 5 || uint64(len(raw)) != 5+16*uint64(binary.BigEndian.Uint32(raw[1:])) {
		return dst, errBinary
	}
	if raw[0] != 0 {
		return append(appendPoints(append(dst, '('), raw[5:]), ')'), nil
	}
	return append(appendPoints(append(dst, '['), raw[5:]), ']'), nil
}

func polygonText(dst, raw []byte) ([]byte, error) {
	if len(raw) < 4 || uint64(len(raw)) != 4+16*uint64(binary.BigEndian.Uint32(raw)) {
		return dst, errBinary
	}
	return append(appendPoints(append(dst, '('), raw[4:]), ')'), nil
}

// tsvectorText: number of lexemes; each a C string, the number of positions,
// and positions with their weight in the highest two bits.
func tsvectorText(dst, raw []byte) ([]byte, error) {
	r := reader{b: raw}
	for i := range r.count(3) {
		if i > 0 {
			dst = append(dst, ' ')
		}
		dst = append(dst, '\'')
		for _, c := range r.cstring() {
			if c == '\'' || c == '\\' {
				dst = append(dst, c)
			}
			dst = append(dst, c)
		}
		dst = append(dst, '\'')
		for j := range int(r.uint16()) {
			sep := byte(',')
			if j == 0 {
				sep = ':'
			}
			pos := r.uint16()
			dst = strconv.AppendUint(append(dst, sep), uint64(pos&0x3FFF), 10)
			if w := pos >> 14; w != 0 {
				dst = append(dst, 'D'-byte(w))
			}
			if r.bad {
				break
			}
		}
	}
	return dst, r.close()
}

// hstoreText: number of pairs; each a key and a value with their lengths, -1
// for null.
func hstoreText(dst, raw []byte) ([]byte, error) {
	r := reader{b: raw}
	for i := range r.count(8) {
		if i > 0 {
			dst = append(dst, ',', ' ')
		}
		key, null := r.value()
		if null {
			return dst, errBinary
		}
		dst = append(appendHstore(dst, key), '=', '>')
		if v, null := r.value(); null {
			dst = append(dst, "NULL"...)
		} else {
			dst = appendHstore(dst, v)
		}
	}
	return dst, r.close()
}

func appendHstore(dst, s []byte) []byte {
	dst = append(dst, '"')
	for _, c := range s {
		if c == '"' || c == '\\' {
			dst = append(dst, '\\')
		}
		dst = append(dst, c)
	}
	return append(dst, '"')
}
