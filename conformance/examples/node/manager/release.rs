//! Publication, eviction, and every way out.

use super::*;

impl Manager {
    /// Give the whole pages of a record's first `length` tokens to the store. In pages:
    ///
    ///     [0, protected)       the store's already, locked by this holder
    ///     [protected, known)   duplicates: freed, and the row lists the store's pages instead
    ///     [known, length)      become the store's
    fn publish(&mut self, record: &mut Record, tokens: &Tokens, length: usize) {
        let (first, last) = (record.protected / self.page_size, length / self.page_size);
        if !self.prefix_cache || last <= first {
            return;
        }
        let mut node = record.node;
        for (index, content) in tokens.pages.iter().enumerate().take(last).skip(first) {
            let own = self.tables[record.row][index];
            node = match self.store.child(node, content) {
                Some(known) => {
                    let page = self.store.nodes[&known].page;
                    self.pages.keep_one(page, own);
                    self.tables[record.row][index] = page;
                    known
                }
                None => self.store.add(node, content.clone(), own),
            };
        }
        self.store.lock(node);
        self.store.unlock(record.node);
        record.node = node;
        record.protected = last * self.page_size;
    }

    /// Give the store the state at the end of what a record has published, if it lacks it and the record has kept it.
    fn publish_state(&mut self, record: &mut Record) -> Option<usize> {
        let cached = self.store.nodes.get_mut(&record.node).filter(|cached| cached.state.is_none())?;
        cached.state = record.kept.remove(&record.protected);
        record.states.retain(|slot| cached.state != Some(*slot));
        cached.state
    }

    pub(super) fn cache_unfinished(&mut self, req: &str, chunked: bool) -> Answer {
        let (tokens, _, run) = self.running(req)?;
        if run.prepared > 0 {
            return refuse("LAUNCH-1", format!("what {req} has prepared is not launched yet"));
        }
        if chunked != run.mid_prefill {
            return refuse("CHUNK-1", format!("chunked is {chunked}, and the prefill of {req} is not there"));
        }
        if !chunked && tokens.len() == run.seq_len {
            return refuse("CHUNK-1", format!("the token that follows the prompt of {req} is not sampled yet"));
        }
        let seq_len = run.seq_len;
        let mut request = self.requests.remove(req).unwrap();
        let record = request.record.as_mut().unwrap();
        let (mut cached, mut taken) = (None, None);
        let too_early = chunked && !self.policies.publishes_chunks;
        if request.session.is_none() || !(request.resumed || too_early) {
            self.publish(record, &request.tokens, seq_len);
            if self.states.short_of(1) == 0 {
                cached = self.publish_state(record);
                taken = cached.map(|_| self.states.take());
                record.states.extend(taken);
            }
        }
        let protected = record.protected;
        self.requests.insert(req.into(), request);
        Ok(vec![
            ("protected_len", protected.into()),
            ("freed", self.pages.full.optional_freed()),
            ("window_freed", self.pages.window.optional_freed()),
            ("state_cached", cached.into()),
            ("state_taken", taken.into()),
        ])
    }

    /// Parts of an answer: all that the operation has freed.
    pub(super) fn freed(&self) -> [(&'static str, Json); 3] {
        let (pages, sides) = (self.pages.full.optional_freed(), self.pages.window.optional_freed());
        [("freed", pages), ("window_freed", sides), ("states_freed", self.states.optional_freed())]
    }

    fn released(&self) -> Answer {
        Ok(self.freed().into())
    }

    /// Give back all that a record has: its own pages with their sides, its lock, its state slots, its row.
    pub(super) fn release(&mut self, record: Record) {
        for page in self.tables[record.row].split_off(record.protected / self.page_size) {
            self.pages.free(page);
        }
        self.store.unlock(record.node);
        for slot in record.states {
            self.states.give_back(slot);
        }
        if self.is_read(record.row) {
            self.withheld.insert(record.row);
        } else {
            self.free_rows.push(record.row);
        }
    }

    /// Give a turn's memory back to its session: what is written counts, as far as its tokens are kept.
    fn hand_back(&mut self, name: &str, mut record: Record, launched: usize, tokens: usize) {
        record.committed = record.committed.min(launched).min(tokens);
        self.sessions.get_mut(name).unwrap().record = Some(record);
    }

    fn end_turn(&mut self, name: &str) {
        let session = self.sessions.get_mut(name).unwrap();
        session.turn = None;
        if session.closing {
            self.close(name);
        }
    }

    fn close(&mut self, name: &str) {
        if let Some(record) = self.sessions.remove(name).unwrap().record {
            self.release(record);
        }
    }

    pub(super) fn finish(&mut self, req: &str) -> Answer {
        let (_, _, run) = self.running(req)?;
        if run.mid_prefill {
            return refuse("OP-1", format!("{req} is in the middle of its prefill"));
        }
        if run.prepared > 0 {
            return refuse("LAUNCH-1", format!("what {req} has prepared is not launched yet"));
        }
        self.forget(req);
        let mut request = self.requests.remove(req).unwrap();
        let (mut record, run) = (request.record.unwrap(), request.run.unwrap());
        let mut cached = None;
        match request.session {
            None => {
                while self.policies.publishes_overshoot && request.tokens.len() < record.committed {
                    request.tokens.push(self.unknown_token);
                    self.unknown_token += 1;
                }
                let kept = record.committed.min(request.tokens.len());
                self.publish(&mut record, &request.tokens, kept);
                cached = self.publish_state(&mut record);
                self.release(record);
            }
            Some(name) => {
                self.hand_back(&name, record, run.launched, request.tokens.len());
                self.sessions.get_mut(&name).unwrap().history = request.tokens;
                self.end_turn(&name);
            }
        }
        let mut answer = self.freed().to_vec();
        answer.push(("state_cached", cached.into()));
        Ok(answer)
    }

    pub(super) fn retract(&mut self, req: &str) -> Answer {
        self.running(req)?;
        self.forget(req);
        let request = self.request(req)?;
        let (record, run) = (request.record.take().unwrap(), request.run.take().unwrap());
        let (session, tokens) = (request.session.clone(), request.tokens.len());
        match session {
            None => self.release(record),
            Some(name) => self.hand_back(&name, record, run.launched, tokens),
        }
        self.released()
    }

    pub(super) fn abort(&mut self, req: &str) -> Answer {
        self.request(req)?;
        self.forget(req);
        let request = self.requests.remove(req).unwrap();
        if let Some(slot) = request.state {
            self.states.give_back(slot);
        }
        let Some(name) = request.session else {
            if let Some(record) = request.record {
                self.release(record);
            }
            return self.released();
        };
        let session = self.sessions.get_mut(&name).unwrap();
        let record = request.record.or_else(|| session.record.take());
        if request.extended {
            // Its tokens never reached the client, so what it wrote is worth nothing.
            record.into_iter().for_each(|record| self.release(record));
        } else {
            session.record = record;
        }
        self.end_turn(&name);
        self.released()
    }

    pub(super) fn close_session(&mut self, name: &str) -> Answer {
        let session = self.session(name)?;
        if session.closing {
            return refuse("OP-1", format!("session {name} is closing already"));
        }
        session.closing = true;
        if session.turn.is_none() {
            self.close(name);
        }
        self.released()
    }

    pub(super) fn preempt(&mut self, name: &str) -> Answer {
        let Some(record) = self.session(name)?.record.take() else {
            return refuse("OP-1", format!("session {name} holds nothing, or its turn has it"));
        };
        self.release(record);
        self.released()
    }

    /// Free at least so many pages, window sides and states of the store, or all that may go.
    pub(super) fn evict(&mut self, n: i64, window: i64, states: i64) -> Answer {
        if n.min(window).min(states) < 0 || n.max(window).max(states) < 1 {
            return refuse("OP-1", format!("{n} pages, {window} sides and {states} states are nothing to evict"));
        }
        if (window > 0 && self.window == 0) || (states > 0 && !self.states.exists()) {
            return refuse("OP-1", "there is no such pool");
        }
        while self.pages.full.freed.len() < n as usize {
            let Some(cached) = self.store.evict() else { break };
            self.pages.free(cached.page);
            if let Some(slot) = cached.state {
                self.states.give_back(slot);
            }
        }
        while self.pages.window.freed.len() < window as usize {
            let Some(page) = self.store.evict_side(&self.pages) else { break };
            self.pages.free_side(page);
        }
        while self.states.freed.len() < states as usize {
            let Some(slot) = self.store.evict_state() else { break };
            self.states.give_back(slot);
        }
        let [(_, pages), (_, sides), (_, states)] = self.freed();
        Ok(vec![("evicted", pages), ("window_evicted", sides), ("states_evicted", states)])
    }

    /// Give back the window sides that no later step of a request reads: a retracted turn computes its last token anew.
    pub(super) fn swa_evict(&mut self, req: &str) -> Answer {
        let (window, size) = (self.window, self.page_size);
        let (tokens, record, run) = self.running(req)?;
        if window == 0 {
            return refuse("OP-1", "there is no sliding window");
        }
        let next = run.launched.min(tokens.len() - 1);
        let first = record.protected.max(record.cursor);
        record.cursor = first.max(next.saturating_sub(window) / size * size);
        let (row, cursor) = (record.row, record.cursor);
        for page in &self.tables[row][first / size..cursor / size] {
            self.pages.free_side(*page);
        }
        Ok(vec![("evicted_len", cursor.into()), ("window_freed", self.pages.window.optional_freed())])
    }
}
