package datum

import (
	"encoding/binary"
	"errors"
	"math"
	"strconv"

	"github.com/millrace/millrace"
)

// moment is a date (in days) or a timestamp (in microseconds), from 1970-01-01;
// inf is 1 or -1 for the infinities.
type moment struct {
	n   int64
	inf int
	// over says that n, a timestamp after 294247-01-10 04:00:54.775807, does not
	// fit into an int64; n is then microseconds from 2000-01-01.
	over bool
}

var (
	errTooLate  = errors.New("is later than 294247-01-10 04:00:54, which microseconds since 1970 cannot say")
	errReserved = errors.New("is the very microsecond that stands for infinity in this form")
)

// infinities as text.
func appendInfinity(dst []byte, sign int) []byte {
	if sign < 0 {
		dst = append(dst, '-')
	}
	return append(dst, "infinity"...)
}

func infinityOf(s []byte) int {
	switch string(s) {
	case "infinity":
		return 1
	case "-infinity":
		return -1
	}
	return 0
}

// scan takes text apart; a part that is not there sets bad.
type scan struct {
	s   []byte
	bad bool
}

func (p *scan) number(least int) int64 {
	i := 0
	var n int64
	for i < len(p.s) && p.s[i] >= '0' && p.s[i] <= '9' && i < 18 {
		n = n*10 + int64(p.s[i]-'0')
		i++
	}
	p.bad = p.bad || i < least
	p.s = p.s[i:]
	return n
}

func (p *scan) is(c byte) bool {
	if len(p.s) > 0 && p.s[0] == c {
		p.s = p.s[1:]
		return true
	}
	return false
}

func (p *scan) want(c byte) {
	if !p.is(c) {
		p.bad = true
	}
}

// clock reads hh:mm[:ss[.ffffff]] as microseconds; hours may have more digits.
func (p *scan) clock() int64 {
	n := p.number(2) * 3600
	p.want(':')
	n += p.number(2) * 60
	if p.is(':') {
		n += p.number(2)
	}
	return n*microsInSec + p.fraction()
}

func (p *scan) fraction() int64 {
	if !p.is('.') {
		return 0
	}
	before := len(p.s)
	n := p.number(1)
	for digits := before - len(p.s); digits < 6; digits++ {
		n *= 10
	}
	return n
}

// date reads year-month-day, without the era.
func (p *scan) date() (year int64, month, day int) {
	year = p.number(4)
	p.want('-')
	month = int(p.number(2))
	p.want('-')
	return year, month, int(p.number(2))
}

// zone reads an offset as seconds east of Greenwich.
func (p *scan) zone() int {
	sign := 1
	if p.is('-') {
		sign = -1
	} else {
		p.want('+')
	}
	n := p.number(2) * 3600
	if p.is(':') {
		n += p.number(2) * 60
	}
	if p.is(':') {
		n += p.number(2)
	}
	return sign * int(n)
}

func (p *scan) era(year int64) int64 {
	if len(p.s) == 3 && string(p.s) == " BC" {
		p.s = nil
		return 1 - year
	}
	return year
}

func (p *scan) done() bool { return !p.bad && len(p.s) == 0 }

func dateOf(v millrace.Value) (moment, error) {
	if v.Kind == millrace.Binary {
		if len(v.Raw) != 4 {
			return moment{}, errBinary
		}
		d := int32(binary.BigEndian.Uint32(v.Raw))
		switch d {
		case math.MaxInt32:
			return moment{inf: 1}, nil
		case math.MinInt32:
			return moment{inf: -1}, nil
		}
		return moment{n: int64(d) + epochDays}, nil
	}
	if inf := infinityOf(v.Raw); inf != 0 {
		return moment{inf: inf}, nil
	}
	p := scan{s: v.Raw}
	y, m, d := p.date()
	y = p.era(y)
	if !p.done() {
		return moment{}, malformed("date", v.Raw)
	}
	return moment{n: daysOf(y, m, d)}, nil
}

// timestampOf reads timestamp and, with zone, timestamptz as it is printed
// under UTC.
func timestampOf(v millrace.Value, zone bool) (moment, error) {
	if v.Kind == millrace.Binary {
		if len(v.Raw) != 8 {
			return moment{}, errBinary
		}
		t := int64(binary.BigEndian.Uint64(v.Raw))
		switch t {
		case math.MaxInt64:
			return moment{inf: 1}, nil
		case math.MinInt64:
			return moment{inf: -1}, nil
		}
		return since1970(t), nil
	}
	if inf := infinityOf(v.Raw); inf != 0 {
		return moment{inf: inf}, nil
	}
	p := scan{s: v.Raw}
	y, m, d := p.date()
	p.want(' ')
	micros := p.clock()
	if zone && p.zone() != 0 {
		p.bad = true
	}
	y = p.era(y)
	if !p.done() {
		return moment{}, malformed("timestamp", v.Raw)
	}
	return since1970((daysOf(y, m, d)-epochDays)*microsInDay + micros), nil
}

func since1970(t int64) moment {
	if t > math.MaxInt64-epochMicros {
		return moment{n: t, over: true}
	}
	return moment{n: t + epochMicros}
}

// since2000 is the inverse, for writing PostgreSQL's text.
func (m moment) since2000() int64 {
	if m.over {
		return m.n
	}
	return m.n - epochMicros
}

func appendDateText(dst []byte, days int64) []byte {
	y, m, d := civil(days)
	return appendEra(appendDate(dst, y, m, d), y)
}

func appendTimestampText(dst []byte, m moment, zone string) []byte {
	days, micros := floorDiv(m.since2000(), microsInDay)
	y, mon, d := civil(days + epochDays)
	dst = appendClock(append(appendDate(dst, y, mon, d), ' '), micros, -1)
	return appendEra(append(dst, zone...), y)
}

// appendISODate writes a date with an astronomical year, as ISO 8601 and Java
// do: 0000 is 1 BC, years beyond four digits have a sign.
func appendISODate(dst []byte, days int64) []byte {
	y, m, d := civil(days)
	switch {
	case y < 0:
		dst, y = append(dst, '-'), -y
	case y > 9999:
		dst = append(dst, '+')
	}
	dst = appendPadded(dst, y, 4)
	dst = appendTwo(append(dst, '-'), m)
	return appendTwo(append(dst, '-'), d)
}

func (p *scan) isoDate() int64 {
	neg := p.is('-')
	if !neg {
		p.is('+')
	}
	y, m, d := p.date()
	if neg {
		y = -y
	}
	return daysOf(y, m, d)
}

func appendISOTimestamp(dst []byte, m moment, fraction int, zone string) []byte {
	days, micros := floorDiv(m.since2000(), microsInDay)
	dst = appendClock(append(appendISODate(dst, days+epochDays), 'T'), micros, fraction)
	return append(dst, zone...)
}

func parseISOTimestamp(s []byte, zone bool) (moment, bool) {
	if inf := infinityOf(s); inf != 0 {
		return moment{inf: inf}, true
	}
	p := scan{s: s}
	days := p.isoDate()
	p.want('T')
	micros := p.clock()
	if zone {
		p.want('Z')
	}
	return since1970((days-epochDays)*microsInDay + micros), p.done()
}

func dateLeaf(s Style) node {
	if s.Plain {
		return &leaf{
			s: &Schema{Kind: String, Format: "date", Loose: true},
			get: func(c *Codec, v millrace.Value) (atom, error) {
				m, err := dateOf(v)
				start := len(c.scratch)
				if m.inf != 0 {
					c.scratch = appendInfinity(c.scratch, m.inf)
				} else {
					c.scratch = appendISODate(c.scratch, m.n)
				}
				return atom{s: c.scratch[start:]}, err
			},
			put: func(dst []byte, a atom) ([]byte, error) {
				if inf := infinityOf(a.s); inf != 0 {
					return appendInfinity(dst, inf), nil
				}
				p := scan{s: a.s}
				days := p.isoDate()
				if !p.done() {
					return dst, malformed("date", a.s)
				}
				return appendDateText(dst, days), nil
			},
		}
	}
	high, low := int64(math.MaxInt32), int64(math.MinInt32)
	if s.Lossy {
		high, low = -622191234, -622191234 // what Debezium 3.6 gives for both
	}
	l := &leaf{
		s: &Schema{Kind: Int32, Name: "io.debezium.time.Date", Version: 1},
		get: func(_ *Codec, v millrace.Value) (atom, error) {
			m, err := dateOf(v)
			return atom{i: pick(m, high, low)}, err
		},
		put: func(dst []byte, a atom) ([]byte, error) {
			switch a.i {
			case high:
				return append(dst, "infinity"...), nil
			case low:
				return append(dst, "-infinity"...), nil
			}
			return appendDateText(dst, a.i), nil
		},
	}
	if s.Lossy {
		l.put = nil
	}
	return l
}

func pick(m moment, high, low int64) int64 {
	switch m.inf {
	case 1:
		return high
	case -1:
		return low
	}
	return m.n
}

func clockOf(v millrace.Value) (int64, error) {
	if v.Kind == millrace.Binary {
		return bigEndian(v.Raw, true)
	}
	p := scan{s: v.Raw}
	n := p.clock()
	if !p.done() {
		return 0, malformed("time", v.Raw)
	}
	return n, nil
}

func timeLeaf(mod int32, s Style) node {
	if s.Plain {
		return verbatimLeaf(&Schema{Kind: String, Format: "time", Loose: true}) // ISO already; 24:00:00 is not
	}
	unit, schema := int64(1), &Schema{Kind: Int64, Name: "io.debezium.time.MicroTime", Version: 1}
	if mod >= 0 && mod <= 3 {
		unit, schema = 1000, &Schema{Kind: Int32, Name: "io.debezium.time.Time", Version: 1}
	}
	return &leaf{
		s: schema,
		get: func(_ *Codec, v millrace.Value) (atom, error) {
			n, err := clockOf(v)
			return atom{i: n / unit}, err
		},
		put: func(dst []byte, a atom) ([]byte, error) {
			if a.i < 0 || a.i > microsInDay/unit {
				return dst, errors.New("not a time of day")
			}
			return appendClock(dst, a.i*unit, -1), nil
		},
	}
}

// timetzLeaf keeps the offset, which Debezium does not.
func timetzLeaf(s Style) node {
	schema := &Schema{Kind: String, Format: "time", Loose: true}
	if !s.Plain {
		schema.Name, schema.Version = "io.debezium.time.ZonedTime", 1
	}
	l := &leaf{
		s: schema,
		get: func(c *Codec, v millrace.Value) (a atom, err error) {
			text, err := c.push(v)
			p := scan{s: text}
			micros, east := p.clock(), p.zone()
			if err != nil || !p.done() {
				return a, errors.Join(malformed("timetz", v.Raw), err)
			}
			start := len(c.scratch)
			if s.Lossy && !s.Plain {
				_, micros = floorDiv(micros-int64(east)*microsInSec, microsInDay)
				c.scratch = append(appendClock(c.scratch, micros, -1), 'Z')
			} else {
				c.scratch = appendZone(appendClock(c.scratch, micros, -1), east, true)
			}
			return atom{s: c.scratch[start:]}, nil
		},
		put: func(dst []byte, a atom) ([]byte, error) {
			p := scan{s: a.s}
			micros, east := p.clock(), p.zone()
			if !p.done() {
				return dst, malformed("timetz", a.s)
			}
			return appendZone(appendClock(dst, micros, -1), east, false), nil
		},
	}
	if s.Lossy {
		l.put = nil
	}
	return l
}

// What Debezium gives for infinite timestamps (pgjdbc's PGStatement).
const (
	lateMicros  = 9223372036825200000
	earlyMicros = -9223372036832400000
)

func timestampLeaf(mod int32, s Style) node {
	if s.Plain {
		return isoTimestampLeaf(&Schema{Kind: String, Format: "date-time", Loose: true}, 6, "")
	}
	unit, schema := int64(1), &Schema{Kind: Int64, Name: "io.debezium.time.MicroTimestamp", Version: 1}
	if mod >= 0 && mod <= 3 {
		unit, schema = 1000, &Schema{Kind: Int64, Name: "io.debezium.time.Timestamp", Version: 1}
	}
	return &leaf{
		s: schema,
		get: func(_ *Codec, v millrace.Value) (a atom, err error) {
			m, err := timestampOf(v, false)
			switch {
			case err != nil:
				return a, err
			case m.inf != 0:
				return atom{i: pick(m, lateMicros, earlyMicros)}, nil
			case m.over && unit == 1:
				return a, errTooLate
			case m.n == lateMicros && unit == 1:
				return a, errReserved
			case m.over:
				return atom{i: m.n/unit + epochMicros/unit}, nil
			}
			quo, _ := floorDiv(m.n, unit)
			return atom{i: quo}, nil
		},
		put: func(dst []byte, a atom) ([]byte, error) {
			switch a.i {
			case lateMicros:
				return append(dst, "infinity"...), nil
			case earlyMicros:
				return append(dst, "-infinity"...), nil
			}
			return appendTimestampText(dst, moment{n: (a.i - epochMicros/unit) * unit, over: true}, ""), nil
		},
	}
}

func timestamptzLeaf(mod int32) node {
	fraction := 6
	if mod >= 0 && mod < 6 {
		fraction = int(mod)
	}
	schema := &Schema{Kind: String, Name: "io.debezium.time.ZonedTimestamp", Version: 1, Format: "date-time", Loose: true}
	return isoTimestampLeaf(schema, fraction, "Z")
}

func isoTimestampLeaf(schema *Schema, fraction int, zone string) node {
	suffix := "" // in PostgreSQL's text
	if zone != "" {
		suffix = "+00"
	}
	return &leaf{
		s: schema,
		get: func(c *Codec, v millrace.Value) (a atom, err error) {
			m, err := timestampOf(v, zone != "")
			if err != nil {
				return a, err
			}
			start := len(c.scratch)
			if m.inf != 0 {
				c.scratch = appendInfinity(c.scratch, m.inf)
			} else {
				c.scratch = appendISOTimestamp(c.scratch, m, fraction, zone)
			}
			return atom{s: c.scratch[start:]}, nil
		},
		put: func(dst []byte, a atom) ([]byte, error) {
			m, ok := parseISOTimestamp(a.s, zone != "")
			switch {
			case !ok:
				return dst, malformed("timestamp", a.s)
			case m.inf != 0:
				return appendInfinity(dst, m.inf), nil
			}
			return appendTimestampText(dst, m, suffix), nil
		},
	}
}

// intervalValue reads an interval in either form.
func intervalValue(v millrace.Value) (iv interval, err error) {
	if v.Kind == millrace.Binary {
		if len(v.Raw) != 16 {
			return iv, errBinary
		}
		return intervalOf(v.Raw), nil
	}
	switch infinityOf(v.Raw) {
	case 1:
		return interval{math.MaxInt64, math.MaxInt32, math.MaxInt32}, nil
	case -1:
		return interval{math.MinInt64, math.MinInt32, math.MinInt32}, nil
	}
	p := scan{s: v.Raw}
	for len(p.s) > 0 && !p.bad {
		neg := p.is('-')
		if !neg {
			p.is('+')
		}
		n := p.number(1)
		if len(p.s) > 0 && p.s[0] == ':' {
			iv.micros = p.clockAfter(n, neg)
			break
		}
		if neg {
			n = -n
		}
		p.want(' ')
		p.unit(&iv, n)
		p.is(' ')
	}
	if !p.done() {
		return iv, malformed("interval", v.Raw)
	}
	return iv, nil
}

// clockAfter reads :mm:ss[.ffffff] behind hours. Wrapping at the smallest
// interval is meant.
func (p *scan) clockAfter(hours int64, neg bool) int64 {
	p.want(':')
	m := p.number(2)
	p.want(':')
	s := p.number(2)
	u := uint64(hours*3600+m*60+s)*microsInSec + uint64(p.fraction())
	if neg {
		u = -u
	}
	return int64(u)
}

func (p *scan) unit(iv *interval, n int64) {
	i := 0
	for i < len(p.s) && p.s[i] >= 'a' && p.s[i] <= 'z' {
		i++
	}
	switch string(p.s[:i]) {
	case "year", "years":
		iv.months += int32(n * 12)
	case "mon", "mons":
		iv.months += int32(n)
	case "day", "days":
		iv.days += int32(n)
	default:
		p.bad = true
	}
	p.s = p.s[i:]
}

// appendISOInterval writes all parts, each with its own sign, as Debezium's
// interval.handling.mode=string does.
func appendISOInterval(dst []byte, iv interval) []byte {
	dst = strconv.AppendInt(append(dst, 'P'), int64(iv.months/12), 10)
	dst = strconv.AppendInt(append(dst, 'Y'), int64(iv.months%12), 10)
	dst = strconv.AppendInt(append(dst, 'M'), int64(iv.days), 10)
	dst = append(dst, 'D', 'T')
	sec, frac := iv.micros/microsInSec, iv.micros%microsInSec
	dst = strconv.AppendInt(dst, sec/3600, 10)
	dst = strconv.AppendInt(append(dst, 'H'), sec/60%60, 10)
	dst = append(dst, 'M')
	if sec%60 == 0 && frac < 0 {
		dst = append(dst, '-')
	}
	dst = strconv.AppendInt(dst, sec%60, 10)
	return append(appendFraction(dst, max(frac, -frac), -1), 'S')
}

func parseISOInterval(s []byte) (iv interval, ok bool) {
	switch infinityOf(s) {
	case 1:
		return interval{math.MaxInt64, math.MaxInt32, math.MaxInt32}, true
	case -1:
		return interval{math.MinInt64, math.MinInt32, math.MinInt32}, true
	}
	p := scan{s: s}
	signed := func(end byte) int64 {
		neg := p.is('-')
		n := p.number(1)
		p.want(end)
		if neg {
			return -n
		}
		return n
	}
	p.want('P')
	iv.months = int32(signed('Y') * 12)
	iv.months += int32(signed('M'))
	iv.days = int32(signed('D'))
	p.want('T')
	iv.micros = signed('H') * 3600 * microsInSec
	iv.micros += signed('M') * 60 * microsInSec
	neg := p.is('-')
	sec := p.number(1)*microsInSec + p.fraction()
	p.want('S')
	if neg {
		sec = -sec
	}
	iv.micros += sec
	return iv, p.done()
}

func intervalLeaf(s Style) node {
	if s.Lossy && !s.Plain {
		return &leaf{
			s: &Schema{Kind: Int64, Name: "io.debezium.time.MicroDuration", Version: 1},
			get: func(_ *Codec, v millrace.Value) (atom, error) {
				iv, err := intervalValue(v)
				days := float64(iv.months)*(365.25/12) + float64(iv.days)
				return atom{i: iv.micros + int64(days*microsInDay)}, err
			},
		}
	}
	schema := &Schema{Kind: String, Format: "duration", Loose: true}
	if !s.Plain {
		schema.Name, schema.Version = "io.debezium.time.Interval", 1
	}
	return &leaf{
		s: schema,
		get: func(c *Codec, v millrace.Value) (a atom, err error) {
			iv, err := intervalValue(v)
			if err != nil {
				return a, err
			}
			start := len(c.scratch)
			if inf := iv.infinite(); inf != 0 {
				c.scratch = appendInfinity(c.scratch, inf)
			} else {
				c.scratch = appendISOInterval(c.scratch, iv)
			}
			return atom{s: c.scratch[start:]}, nil
		},
		put: func(dst []byte, a atom) ([]byte, error) {
			iv, ok := parseISOInterval(a.s)
			if !ok {
				return dst, malformed("interval", a.s)
			}
			return appendInterval(dst, iv), nil
		},
	}
}
