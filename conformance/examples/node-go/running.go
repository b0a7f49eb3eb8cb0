package main

import (
	"encoding/json"
	"slices"
)

// A target is a request and up to where it is to be prefilled.
type target struct {
	req    string
	seqLen int
}

// UnmarshalJSON reads a pair: ["r1", 6].
func (t *target) UnmarshalJSON(pair []byte) error {
	return json.Unmarshal(pair, &[]any{&t.req, &t.seqLen})
}

type prefillBatch struct{ Reqs []target }

// extend prefills a batch: rows and pages for all of it, or nothing.
func (m *manager) extend(a prefillBatch) (answer, error) {
	names := []string{}
	for _, t := range a.Reqs {
		names = append(names, t.req)
	}
	batch, err := m.batch(names)
	if err != nil {
		return nil, err
	}
	neededPages, neededRows := 0, 0
	for i, r := range batch {
		if err := m.checkPrefill(r, a.Reqs[i].seqLen); err != nil {
			return nil, err
		}
		neededPages += m.pages(a.Reqs[i].seqLen) - m.pages(r.begins())
		if r.record == nil {
			neededRows++
		}
	}
	if err := m.checkChunks(a.Reqs); err != nil {
		return nil, err
	}
	if err := m.checkRoom(neededPages, neededRows); err != nil {
		return nil, err
	}
	rows, pages := map[string]int{}, map[string][]int{}
	for i, r := range batch {
		pages[r.name] = m.prefill(r, a.Reqs[i].seqLen)
		rows[r.name] = r.record.row
	}
	return answer{"rows": rows, "pages": pages}, nil
}

// batch returns the requests of a batch, and refuses one that is empty or has a request twice.
func (m *manager) batch(names []string) ([]*request, error) {
	batch, seen := []*request{}, map[string]bool{}
	for _, name := range names {
		r, err := m.request(name)
		if err != nil {
			return nil, err
		}
		if seen[name] {
			return nil, refuse("OP-1", "%s is in the batch twice", name)
		}
		seen[name] = true
		batch = append(batch, r)
	}
	if len(batch) == 0 {
		return nil, refuse("OP-1", "the batch is empty")
	}
	return batch, nil
}

// begins is the position from which the next extend of a request writes.
func (r *request) begins() int {
	if r.run != nil {
		return r.run.seqLen
	}
	return r.prefixLen
}

func (m *manager) checkPrefill(r *request, seqLen int) error {
	begin, length := r.begins(), r.tokens.len()
	switch {
	case r.run == nil && !r.matched:
		return refuse("OP-1", "%s has not matched its prefix", r.name)
	case r.run != nil && !r.run.midPrefill:
		return refuse("OP-1", "the prefill of %s is complete", r.name)
	case r.run != nil && r.run.prepared != nil:
		return refuse("LAUNCH-1", "the last chunk of %s is not launched yet", r.name)
	case r.record == nil && m.store.find(r.tokens.pages[:begin/m.PageSize]).depth < begin/m.PageSize:
		return refuse("STORE-5", "what %s matched has been evicted", r.name)
	case r.run == nil && r.record != nil && m.reads(r.record.row, begin):
		return refuse("RACE-1", "a launch in flight reads what %s would overwrite", r.name)
	case seqLen <= begin || seqLen > length:
		return refuse("OP-1", "seq_len %d of %s is not in %d..%d", seqLen, r.name, begin+1, length)
	case seqLen > m.MaxContextLen:
		return refuse("LEN-1", "%s would grow to %d, past the context", r.name, seqLen)
	}
	return nil
}

// checkChunks lets at most one request be in the middle of its prefill after a batch.
func (m *manager) checkChunks(batch []target) error {
	continuing, begun, left := 0, 0, 0
	for _, r := range m.requests {
		if r.run != nil && r.run.midPrefill {
			left++
		}
	}
	for _, t := range batch {
		r := m.requests[t.req]
		if r.run != nil {
			continuing++
			left--
		}
		if t.seqLen < r.tokens.len() {
			left++
			if r.run == nil {
				begun++
			}
		}
	}
	if continuing > 1 || begun > 1 {
		return refuse("BATCH-1", "the batch continues %d chunked requests and begins %d", continuing, begun)
	}
	if left > 1 {
		return refuse("BATCH-2", "%d requests would be in the middle of their prefill", left)
	}
	return nil
}

// prefill extends one request of a batch that fits, and returns its new pages.
func (m *manager) prefill(r *request, seqLen int) []int {
	begin := r.begins()
	if r.record == nil {
		end := m.store.find(r.tokens.pages[:begin/m.PageSize])
		m.store.touch(end)
		lock(end)
		last := len(m.freeRows) - 1
		r.record = &record{row: m.freeRows[last], table: end.table(), protected: begin, locked: end}
		m.freeRows = m.freeRows[:last]
	}
	if r.run == nil {
		r.run = &run{}
	}
	r.matched, r.extended = false, true
	r.run.seqLen, r.run.midPrefill = seqLen, seqLen < r.tokens.len()
	r.run.prepared = &work{start: begin, end: seqLen}
	r.record.committed = seqLen
	return m.grow(r.record, seqLen)
}

type decodeBatch struct {
	Reqs []string
	N    *int
}

// decode makes room for a step of n positions of each request; of one position, it is committed at once.
func (m *manager) decode(a decodeBatch) (answer, error) {
	n := 1
	if a.N != nil {
		n = *a.N
	}
	if n < 1 {
		return nil, refuse("OP-1", "a step has %d positions", n)
	}
	batch, err := m.batch(a.Reqs)
	if err != nil {
		return nil, err
	}
	needed := 0
	for _, r := range batch {
		if err := m.checkDecode(r, n); err != nil {
			return nil, err
		}
		needed += max(0, m.pages(r.reach()+n)-len(r.record.table))
	}
	if err := m.checkRoom(needed, 0); err != nil {
		return nil, err
	}
	pages := map[string][]int{}
	for _, r := range batch {
		r.run.prepared = &work{start: r.record.committed, end: r.reach() + n}
		if n == 1 {
			r.record.committed++
		} else {
			r.run.prepared.drafts = n
		}
		pages[r.name] = m.grow(r.record, r.run.prepared.end)
	}
	return answer{"pages": pages}, nil
}

// reach is where a decode step begins at the latest: a step that is not verified may have all its positions accepted.
func (r *request) reach() int {
	position := r.record.committed
	for _, earlier := range r.run.steps {
		position += earlier.positions
	}
	return position
}

func (m *manager) checkDecode(r *request, n int) error {
	if r.run == nil {
		return refuse("OP-1", "request %s is not running", r.name)
	}
	switch steps := len(r.run.steps); {
	case r.run.prepared != nil || r.run.midPrefill:
		return refuse("OP-1", "%s has a prefill or a decode step that is not done", r.name)
	case steps > 1 || steps > 0 && n == 1:
		return refuse("SPEC-1", "a speculative step of %s is not verified yet", r.name)
	case r.record.committed >= r.tokens.len()+r.run.sampling:
		return refuse("OP-1", "%s has no token to decode", r.name)
	case n > m.MaxContextLen-r.reach():
		return refuse("LEN-1", "%s would grow by %d, past the context", r.name, n)
	}
	return nil
}

type launchBatch struct {
	Launch int
	Reqs   []string
}

// launch hands to the device what requests have prepared.
func (m *manager) launch(a launchBatch) (answer, error) {
	if m.flight(a.Launch) >= 0 {
		return nil, refuse("OP-1", "launch %d is in flight", a.Launch)
	}
	batch, err := m.batch(a.Reqs)
	if err != nil {
		return nil, err
	}
	for _, r := range batch {
		if r.run == nil || r.run.prepared == nil {
			return nil, refuse("OP-1", "%s has nothing to launch", r.name)
		}
	}
	launched := flight{number: a.Launch}
	for _, r := range batch {
		prepared := r.run.prepared
		r.run.prepared = nil
		p := passage{request: r, run: r.run, row: r.record.row, end: prepared.end}
		if prepared.drafts > 0 {
			p.step = &step{positions: prepared.drafts}
			r.run.steps = append(r.run.steps, p.step)
		} else if !r.run.midPrefill {
			p.samples = true
			r.run.sampling++
		}
		launched.passages = append(launched.passages, p)
	}
	m.flights = append(m.flights, launched)
	return answer{}, nil
}

// flight is the place of a launch among those in flight, or -1.
func (m *manager) flight(number int) int {
	return slices.IndexFunc(m.flights, func(f flight) bool { return f.number == number })
}

type completion struct {
	Launch int
	Tokens map[string]int64
}

// complete brings the tokens of the oldest launch, and frees the rows that were withheld for it.
func (m *manager) complete(a completion) (answer, error) {
	place := m.flight(a.Launch)
	if place < 0 {
		return nil, refuse("OP-1", "launch %d is not in flight", a.Launch)
	}
	if place > 0 {
		return nil, refuse("LAUNCH-1", "launch %d was handed over before", m.flights[0].number)
	}
	due := 0
	for _, p := range m.flights[0].passages {
		if !p.samples || !p.lives() {
			continue
		}
		if _, came := a.Tokens[p.request.name]; !came {
			return nil, refuse("CHUNK-1", "no token came for %s", p.request.name)
		}
		due++
	}
	if due < len(a.Tokens) {
		return nil, refuse("CHUNK-1", "%d tokens came, and %d are due", len(a.Tokens), due)
	}
	for _, p := range m.flights[0].passages {
		if p.step != nil {
			p.step.completed = true
		}
		if p.samples && p.lives() {
			p.request.tokens.push(a.Tokens[p.request.name])
			p.run.sampling--
		}
	}
	m.flights = m.flights[1:]
	m.withheld = slices.DeleteFunc(m.withheld, func(row int) bool {
		read := m.reads(row, 0)
		if !read {
			m.freeRows = append(m.freeRows, row)
		}
		return !read
	})
	return answer{}, nil
}

type verification struct {
	Req      string
	Accepted int
	Tokens   []int64
}

// verify commits the accepted positions of the oldest speculative step. A request that keeps fewer tokens has stopped.
func (m *manager) verify(a verification) (answer, error) {
	r, err := m.running(a.Req)
	if err != nil {
		return nil, err
	}
	steps, kept := r.run.steps, len(a.Tokens)
	switch {
	case len(steps) == 0 || !steps[0].completed:
		return nil, refuse("SPEC-1", "%s has no completed speculative step", a.Req)
	case r.run.prepared != nil:
		return nil, refuse("LAUNCH-1", "the next step of %s is not launched yet", a.Req)
	case a.Accepted < 1 || a.Accepted > steps[0].positions:
		return nil, refuse("SPEC-1", "%d accepted positions are not in 1..%d", a.Accepted, steps[0].positions)
	case kept < 1 || kept > a.Accepted:
		return nil, refuse("SPEC-1", "%d tokens for %d accepted positions", kept, a.Accepted)
	}
	r.record.committed += a.Accepted
	r.tokens.push(a.Tokens...)
	r.run.steps = steps[1:]
	if kept < a.Accepted {
		r.run.steps = nil
	}
	return answer{}, nil
}
