package relay

import (
	"time"

	"github.com/millrace/millrace"
)

const (
	// xidMemory is how long a transaction's number is remembered.
	xidMemory = 10 * time.Minute
	// xidPage is how many consecutive numbers share a page: 4 bytes each.
	xidPage = 1024
	// maxXIDPages bounds the memory to 8 MiB, which is ten minutes of 3,500
	// transactions a second; above that rate the memory is shorter.
	maxXIDPages = 2048
)

// xids remembers which position ends which transaction. Numbers are handed out
// in sequence, so pages of consecutive ones are nearly full; commit records end
// at multiples of 8 bytes, so 32 bits span 32 GiB of WAL behind a page's base.
type xids struct {
	pages map[uint32]*xidEntries
	order []uint32 // the pages' numbers, oldest first
	last  *xidEntries
}

type xidEntries struct {
	number uint32
	base   millrace.LSN
	used   time.Time
	ends   [xidPage]uint32 // (end - base) / 8 + 1; 0: unknown
}

func (x *xids) add(xid uint32, end millrace.LSN, now time.Time) {
	page := x.last
	if page == nil || page.number != xid/xidPage {
		page = x.pages[xid/xidPage]
		if page == nil || now.Sub(page.used) > xidMemory {
			page = x.create(xid/xidPage, end, now)
		}
		x.last = page
	}
	page.used = now
	// A transaction that began long after its neighbours can lie too far
	// behind the base, or before it: then it is not remembered.
	if end < page.base || end%8 != 0 {
		return
	}
	if offset := uint64(end-page.base)/8 + 1; offset <= 1<<32-1 {
		page.ends[xid%xidPage] = uint32(offset)
	}
}

func (x *xids) create(number uint32, end millrace.LSN, now time.Time) *xidEntries {
	if x.pages == nil {
		x.pages = make(map[uint32]*xidEntries)
	}
	if old := x.pages[number]; old != nil {
		// The counter has wrapped around and come back here.
		*old = xidEntries{number: number, base: end, used: now}
		return old
	}
	for len(x.order) > 0 && (len(x.order) >= maxXIDPages || now.Sub(x.pages[x.order[0]].used) > xidMemory) {
		delete(x.pages, x.order[0])
		x.order = x.order[1:]
	}
	page := &xidEntries{number: number, base: end, used: now}
	x.pages[number] = page
	x.order = append(x.order, number)
	return page
}

// find gives the end of the transaction, if it is remembered.
func (x *xids) find(xid uint32, now time.Time) (millrace.LSN, bool) {
	page := x.pages[xid/xidPage]
	if page == nil || now.Sub(page.used) > xidMemory {
		return 0, false
	}
	offset := page.ends[xid%xidPage]
	if offset == 0 {
		return 0, false
	}
	return page.base + millrace.LSN(offset-1)*8, true
}
