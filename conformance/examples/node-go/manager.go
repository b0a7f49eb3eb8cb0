package main

import (
	"fmt"
	"slices"
)

// A config has the fixed sizes and the policies of the header.
type config struct {
	PageSize        int    `json:"page_size"`
	NumPages        int    `json:"num_pages"`
	NumRows         int    `json:"num_rows"`
	MaxContextLen   int    `json:"max_context_len"`
	PrefixCache     *bool  `json:"prefix_cache"`
	RowsRead        string `json:"rows_read"`
	FirstTurnChunks string `json:"first_turn_chunks"`
	TurnsCountAs    string `json:"turns_count_as"`
}

// A record is the memory of one holder, a request or an idle session. It moves between them as a whole. Its lengths
// cut the positions of its row into ranges:
//
//	[0, protected)           pages of the prefix store, locked by this holder
//	[protected, committed)   its own pages, with K/V that counts
//	[committed, allocated)   its own pages, with room for drafts, or left over
type record struct {
	row                             int
	table                           []int // the page of each page of positions
	protected, committed, allocated int
	locked                          *node // the prefix of the protected length
}

// Work is what a request has prepared, and not launched yet: positions from start to end.
type work struct {
	start, end int
	drafts     int // positions that a verify will judge; 0 of a chunk, a prompt or a decode step of one position
}

// A step is a speculative one that is launched and not verified.
type step struct {
	positions int
	completed bool
}

// A run lasts from the first extend of a request to the finish, retract or abort that ends it.
type run struct {
	seqLen     int // the end of the last extend
	midPrefill bool
	prepared   *work
	steps      []*step // oldest first
	sampling   int     // launches in flight that will bring a token
}

type request struct {
	name      string
	tokens    tokens
	session   *session
	matched   bool
	prefixLen int  // of its last match
	resumed   bool // it goes on with its session's record
	extended  bool // it ran, now or before a retract
	record    *record
	run       *run
}

type session struct {
	name    string
	history tokens
	record  *record // nil without memory, and while the turn has it
	turn    *request
	closing bool
}

// A passage is one request's part of a launch in flight. It reads positions [0, end) of its row.
type passage struct {
	request *request
	run     *run
	row     int
	end     int
	samples bool
	step    *step // nil but of a speculative step
}

// lives says whether the request is still in the run for which the launch was handed over.
func (p *passage) lives() bool {
	return p.request.run == p.run
}

type flight struct {
	number   int
	passages []passage
}

type manager struct {
	config
	freePages []int
	freeRows  []int
	withheld  []int // rows that nobody has, and a launch in flight reads
	store     store
	requests  map[string]*request
	sessions  map[string]*session
	flights   []flight // oldest first
	freed     []int    // pages that the operation under way has freed
}

func newManager(sizes config) *manager {
	m := &manager{
		config:    sizes,
		freePages: []int{},
		freeRows:  []int{},
		withheld:  []int{},
		store:     newStore(),
		requests:  map[string]*request{},
		sessions:  map[string]*session{},
	}
	for page := sizes.NumPages; page > 0; page-- {
		m.freePages = append(m.freePages, page)
	}
	for row := sizes.NumRows - 1; row >= 0; row-- {
		m.freeRows = append(m.freeRows, row)
	}
	return m
}

// An answer has the parts of an obs by their names.
type answer map[string]any

// A refusal is an operation that is not carried out, and changes nothing.
type refusal struct {
	Rule       string `json:"rule"`
	Reason     string `json:"reason"`
	PagesShort int    `json:"pages_short"`
	RowsShort  int    `json:"rows_short"`
}

func (r *refusal) Error() string {
	return r.Rule + ": " + r.Reason
}

func refuse(rule, format string, values ...any) error {
	return &refusal{Rule: rule, Reason: fmt.Sprintf(format, values...)}
}

func (m *manager) request(name string) (*request, error) {
	if r := m.requests[name]; r != nil {
		return r, nil
	}
	return nil, refuse("OP-1", "there is no request %s", name)
}

func (m *manager) running(name string) (*request, error) {
	if r := m.requests[name]; r != nil && r.run != nil {
		return r, nil
	}
	return nil, refuse("OP-1", "request %s is not running", name)
}

func (m *manager) session(name string) (*session, error) {
	if s := m.sessions[name]; s != nil {
		return s, nil
	}
	return nil, refuse("OP-1", "there is no session %s", name)
}

// pages is how many pages length positions fill, the last one perhaps in part.
func (m *manager) pages(length int) int {
	return (length + m.PageSize - 1) / m.PageSize
}

// checkRoom refuses what does not fit.
func (m *manager) checkRoom(pages, rows int) error {
	pages, rows = max(0, pages-len(m.freePages)), max(0, rows-len(m.freeRows))
	if pages+rows == 0 {
		return nil
	}
	return &refusal{"CAP-1", fmt.Sprintf("%d pages and %d rows are missing", pages, rows), pages, rows}
}

// grow gives a record the pages that it lacks for length positions, and returns them.
func (m *manager) grow(r *record, length int) []int {
	left := len(m.freePages) - max(0, m.pages(length)-len(r.table))
	added := slices.Clone(m.freePages[left:])
	m.freePages = m.freePages[:left]
	r.table = append(r.table, added...)
	r.allocated = max(r.allocated, length)
	return added
}

// cut frees the whole pages of a record behind its first length positions.
func (m *manager) cut(r *record, length int) {
	m.free(r.table[m.pages(length):])
	r.table = r.table[:m.pages(length)]
}

func (m *manager) free(pages []int) {
	m.freed = append(m.freed, pages...)
	m.freePages = append(m.freePages, pages...)
}

// release gives back all that a record has, if there is one: its own pages, its lock, its row.
func (m *manager) release(r *record) {
	if r == nil {
		return
	}
	m.cut(r, r.protected)
	unlock(r.locked)
	if m.reads(r.row, 0) {
		m.withheld = append(m.withheld, r.row)
	} else {
		m.freeRows = append(m.freeRows, r.row)
	}
}

// reads says whether a launch in flight reads a position of a row from start on, and the row may not change under it.
func (m *manager) reads(row, start int) bool {
	if m.RowsRead == "at_launch" || m.RowsRead == "in_order" {
		return false
	}
	return slices.ContainsFunc(m.flights, func(f flight) bool {
		return slices.ContainsFunc(f.passages, func(p passage) bool { return p.row == row && p.end > start })
	})
}
