package main

// publish gives the whole pages of a record's first length tokens to the store. In positions:
//
//	[0, protected)               the store's already, locked by this holder
//	[protected, known)           duplicates: freed, and the table names the store's pages instead
//	[known, floor(length))       become the store's
func (m *manager) publish(r *record, t *tokens, length int) {
	first, last := r.protected/m.PageSize, length/m.PageSize
	if last <= first || m.PrefixCache != nil && !*m.PrefixCache {
		return
	}
	unlock(r.locked)
	for index, page := range t.pages[first:last] {
		own := &r.table[first+index]
		if known := r.locked.children[page]; known != nil {
			m.free([]int{*own})
			*own = known.page
			r.locked = known
		} else {
			r.locked = m.store.add(r.locked, page, *own)
		}
	}
	lock(r.locked)
	m.store.touch(r.locked)
	r.protected = last * m.PageSize
}

type publication struct {
	Req     string
	Chunked bool
}

func (m *manager) cacheUnfinished(a publication) (answer, error) {
	r, err := m.running(a.Req)
	if err != nil {
		return nil, err
	}
	switch {
	case r.run.prepared != nil:
		return nil, refuse("LAUNCH-1", "what %s has prepared is not launched yet", a.Req)
	case a.Chunked != r.run.midPrefill:
		return nil, refuse("CHUNK-1", "whether more of the prompt of %s is to come is told wrongly", a.Req)
	case !a.Chunked && r.tokens.len() == r.run.seqLen:
		return nil, refuse("CHUNK-1", "the token that follows the prompt of %s is not sampled yet", a.Req)
	}
	private := r.resumed || a.Chunked && m.FirstTurnChunks != "published"
	if r.session == nil || !private {
		m.publish(r.record, &r.tokens, r.run.seqLen)
	}
	return answer{"protected_len": r.record.protected, "freed": m.freed}, nil
}

// stop ends a request's run and returns its memory. Of what was prepared and not launched nothing counts, and of
// positions past its tokens neither.
func (r *request) stop() *record {
	left := r.record
	if r.run != nil {
		left.committed = min(left.committed, r.tokens.len())
		if r.run.prepared != nil {
			left.committed = min(left.committed, r.run.prepared.start)
		}
	}
	r.record, r.run, r.matched = nil, nil, false
	return left
}

// endTurn gives a session what its turn has left; a closing one is gone then.
func (m *manager) endTurn(s *session, left *record) {
	s.turn, s.record = nil, left
	if s.closing {
		m.drop(s)
	}
}

func (m *manager) drop(s *session) {
	m.release(s.record)
	delete(m.sessions, s.name)
}

func (m *manager) finish(a onRequest) (answer, error) {
	r, err := m.running(a.Req)
	if err != nil {
		return nil, err
	}
	if r.run.midPrefill {
		return nil, refuse("OP-1", "%s is in the middle of its prefill", a.Req)
	}
	if r.run.prepared != nil {
		return nil, refuse("LAUNCH-1", "what %s has prepared is not launched yet", a.Req)
	}
	left := r.stop()
	delete(m.requests, r.name)
	if s := r.session; s != nil {
		s.history = r.tokens
		m.endTurn(s, left)
	} else {
		m.publish(left, &r.tokens, left.committed)
		m.release(left)
	}
	return answer{"freed": m.freed}, nil
}

func (m *manager) retract(a onRequest) (answer, error) {
	r, err := m.running(a.Req)
	if err != nil {
		return nil, err
	}
	left := r.stop()
	if r.session != nil {
		r.session.record = left
	} else {
		m.release(left)
	}
	return answer{"freed": m.freed}, nil
}

func (m *manager) abort(a onRequest) (answer, error) {
	r, err := m.request(a.Req)
	if err != nil {
		return nil, err
	}
	left := r.stop()
	delete(m.requests, r.name)
	s := r.session
	if s != nil && left == nil {
		left = s.record
	}
	// The client never got the tokens of a turn that ran, so what it wrote is worth nothing.
	if s == nil || r.extended {
		m.release(left)
		left = nil
	}
	if s != nil {
		m.endTurn(s, left)
	}
	return answer{"freed": m.freed}, nil
}

func (m *manager) closeSession(a onSession) (answer, error) {
	s, err := m.session(a.Session)
	if err != nil {
		return nil, err
	}
	if s.closing {
		return nil, refuse("OP-1", "session %s is closing already", a.Session)
	}
	s.closing = true
	if s.turn == nil {
		m.drop(s)
	}
	return answer{"freed": m.freed}, nil
}

func (m *manager) preempt(a onSession) (answer, error) {
	s, err := m.session(a.Session)
	if err != nil {
		return nil, err
	}
	if s.record == nil {
		return nil, refuse("OP-1", "session %s holds nothing, or its turn has it", a.Session)
	}
	m.release(s.record)
	s.record = nil
	return answer{"freed": m.freed}, nil
}

type eviction struct{ N, Window, States int }

func (m *manager) evict(a eviction) (answer, error) {
	if a.N < 1 || a.Window != 0 || a.States != 0 {
		return nil, refuse("OP-1", "this is nothing to evict")
	}
	evicted := m.store.evict(a.N)
	m.freePages = append(m.freePages, evicted...)
	return answer{"evicted": evicted}, nil
}
