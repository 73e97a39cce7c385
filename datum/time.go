package datum

import (
	"encoding/binary"
	"math"
	"strconv"
)

// PostgreSQL counts dates in days and times in microseconds from 2000-01-01.
const (
	epochDays   = 10957 // 2000-01-01, in days from 1970-01-01
	microsInSec = 1_000_000
	microsInDay = 86400 * microsInSec
	epochMicros = epochDays * int64(microsInDay)
)

func dateText(dst, raw []byte) []byte {
	d := int32(binary.BigEndian.Uint32(raw))
	switch d {
	case math.MaxInt32:
		return append(dst, "infinity"...)
	case math.MinInt32:
		return append(dst, "-infinity"...)
	}
	y, m, day := civil(int64(d) + epochDays)
	dst = appendDate(dst, y, m, day)
	return appendEra(dst, y)
}

// appendDate writes a year of the proleptic Gregorian calendar, where 0 is 1
// BC, without the era.
func appendDate(dst []byte, year int64, month, day int) []byte {
	if year <= 0 {
		year = 1 - year
	}
	dst = appendPadded(dst, year, 4)
	dst = appendTwo(append(dst, '-'), month)
	return appendTwo(append(dst, '-'), day)
}

func appendEra(dst []byte, year int64) []byte {
	if year <= 0 {
		return append(dst, " BC"...)
	}
	return dst
}

func appendPadded(dst []byte, n int64, width int) []byte {
	var buf [20]byte
	s := strconv.AppendInt(buf[:0], n, 10)
	for range width - len(s) {
		dst = append(dst, '0')
	}
	return append(dst, s...)
}

func appendTwo(dst []byte, n int) []byte { return append(dst, byte('0'+n/10), byte('0'+n%10)) }

// appendClock writes a time of day, in microseconds, with digits behind the
// point: all of them, or with fraction < 0 as many as are needed.
func appendClock(dst []byte, micros int64, fraction int) []byte {
	sec := micros / microsInSec
	dst = appendTwo(dst, int(sec/3600))
	dst = appendTwo(append(dst, ':'), int(sec/60%60))
	dst = appendTwo(append(dst, ':'), int(sec%60))
	return appendFraction(dst, micros%microsInSec, fraction)
}

func appendFraction(dst []byte, micros int64, fraction int) []byte {
	if fraction == 0 || fraction < 0 && micros == 0 {
		return dst
	}
	dst = appendPadded(append(dst, '.'), micros, 6)
	if fraction > 0 {
		return dst[:len(dst)-6+fraction]
	}
	for dst[len(dst)-1] == '0' {
		dst = dst[:len(dst)-1]
	}
	return dst
}

func timeText(dst, raw []byte) []byte {
	return appendClock(dst, int64(binary.BigEndian.Uint64(raw)), -1)
}

// timetzText: microseconds, and seconds west of Greenwich.
func timetzText(dst, raw []byte) []byte {
	dst = timeText(dst, raw[:8])
	return appendZone(dst, -int(int32(binary.BigEndian.Uint32(raw[8:]))), false)
}

// appendZone writes an offset in seconds east of Greenwich: +02, +05:30,
// +02:30:15; in ISO form always with minutes.
func appendZone(dst []byte, east int, iso bool) []byte {
	sign := byte('+')
	if east < 0 {
		sign, east = '-', -east
	}
	dst = appendTwo(append(dst, sign), east/3600)
	if m, s := east/60%60, east%60; iso || m != 0 || s != 0 {
		dst = appendTwo(append(dst, ':'), m)
		if s != 0 {
			dst = appendTwo(append(dst, ':'), s)
		}
	}
	return dst
}

func timestampText(dst, raw []byte) []byte { return appendTimestamp(dst, raw, "") }

func timestamptzText(dst, raw []byte) []byte { return appendTimestamp(dst, raw, "+00") }

func appendTimestamp(dst, raw []byte, zone string) []byte {
	t := int64(binary.BigEndian.Uint64(raw))
	switch t {
	case math.MaxInt64:
		return append(dst, "infinity"...)
	case math.MinInt64:
		return append(dst, "-infinity"...)
	}
	days, micros := floorDiv(t, microsInDay)
	y, m, d := civil(days + epochDays)
	dst = appendDate(dst, y, m, d)
	dst = appendClock(append(dst, ' '), micros, -1)
	return appendEra(append(dst, zone...), y)
}

func floorDiv(a, b int64) (quo, rem int64) {
	quo, rem = a/b, a%b
	if rem < 0 {
		quo, rem = quo-1, rem+b
	}
	return quo, rem
}

// intervalText writes microseconds, days and months in the style "postgres".
func intervalText(dst, raw []byte) []byte { return appendInterval(dst, intervalOf(raw)) }

func appendInterval(dst []byte, iv interval) []byte {
	switch iv.infinite() {
	case 1:
		return append(dst, "infinity"...)
	case -1:
		return append(dst, "-infinity"...)
	}
	start, negative := len(dst), false // negative: whether the part before was
	part := func(n int64, unit string) {
		if n == 0 {
			return
		}
		if len(dst) > start {
			dst = append(dst, ' ')
			if negative && n > 0 {
				dst = append(dst, '+')
			}
		}
		dst = strconv.AppendInt(dst, n, 10)
		dst = append(append(dst, ' '), unit...)
		if n != 1 {
			dst = append(dst, 's')
		}
		negative = n < 0
	}
	part(int64(iv.months)/12, "year")
	part(int64(iv.months)%12, "mon")
	part(int64(iv.days), "day")
	if iv.micros == 0 && len(dst) > start {
		return dst
	}
	if len(dst) > start {
		dst = append(dst, ' ')
	}
	micros := iv.micros
	u := uint64(micros)
	switch {
	case micros < 0:
		dst, u = append(dst, '-'), -u
	case negative:
		dst = append(dst, '+')
	}
	sec := u / microsInSec
	dst = appendPadded(dst, int64(sec/3600), 2)
	dst = appendTwo(append(dst, ':'), int(sec/60%60))
	dst = appendTwo(append(dst, ':'), int(sec%60))
	return appendFraction(dst, int64(u%microsInSec), -1)
}

type interval struct {
	micros       int64
	days, months int32
}

func intervalOf(raw []byte) interval {
	return interval{
		micros: int64(binary.BigEndian.Uint64(raw)),
		days:   int32(binary.BigEndian.Uint32(raw[8:])),
		months: int32(binary.BigEndian.Uint32(raw[12:])),
	}
}

// infinite gives 1, -1 or 0. PostgreSQL 17 took the extremes for infinity;
// before it they can't be written.
func (iv interval) infinite() int {
	switch iv {
	case interval{math.MaxInt64, math.MaxInt32, math.MaxInt32}:
		return 1
	case interval{math.MinInt64, math.MinInt32, math.MinInt32}:
		return -1
	}
	return 0
}

// civil turns days from 1970-01-01 into a date, and daysOf back. The method is
// Howard Hinnant's (chrono-compatible low-level date algorithms): years begin
// in March, eras have 400 years.
func civil(days int64) (year int64, month, day int) {
	era, doe := floorDiv(days+719468, 146097)
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	year, month, day = yoe+era*400, int(mp+3), int(doy-(153*mp+2)/5+1)
	if month > 12 {
		month -= 12
		year++
	}
	return year, month, day
}

func daysOf(year int64, month, day int) int64 {
	m := int64(month)
	if month <= 2 {
		year--
		m += 12
	}
	era, yoe := floorDiv(year, 400)
	doy := (153*(m-3)+2)/5 + int64(day) - 1
	doe := yoe*365 + yoe/4 - yoe/100 + doy
	return era*146097 + doe - 719468
}
