//! `extend`: a whole batch is carried out, or nothing of it.

use super::*;

impl Manager {
    pub(super) fn extend(&mut self, reqs: &[Json]) -> Answer {
        let batch: Vec<(String, usize)> =
            reqs.iter().map(|one| (one.list()[0].text().to_string(), one.list()[1].size())).collect();
        let size = self.page_size;
        let mut needed = 0;
        for (req, seq_len) in &batch {
            needed += seq_len.div_ceil(size).saturating_sub(self.check_prefill(req, *seq_len)?.div_ceil(size));
        }
        let names: Vec<String> = batch.iter().map(|(req, _)| req.clone()).collect();
        check_batch(&names)?;
        self.check_chunks(&batch)?;
        let new: Vec<&String> = names.iter().filter(|req| self.requests[*req].record.is_none()).collect();
        let states = new.iter().map(|req| self.states_missing(&self.requests[*req])).sum();
        self.check_room(needed, new.len(), states)?;
        let (mut rows, mut pages, mut states, mut sources) = (vec![], vec![], vec![], vec![]);
        for (req, seq_len) in &batch {
            if self.requests[req].record.is_none() {
                states.push((req.clone(), self.begin(req)));
            }
            let (source, row, new) = self.prefill(req, *seq_len);
            sources.extend(source.map(|slot| (req.clone(), slot.into())));
            rows.push((req.clone(), row.into()));
            pages.push((req.clone(), new));
        }
        let mut answer = vec![("rows", Json::Object(rows))];
        answer.extend(self.given(&pages));
        answer.push(("states", self.states.optional(given(states))));
        answer.push(("states_from", self.states.optional(Json::Object(sources))));
        Ok(answer)
    }

    /// Where a request of a prefill batch begins to write.
    fn check_prefill(&mut self, req: &str, seq_len: usize) -> Result<usize, Refusal> {
        let (size, max) = (self.page_size, self.max_context_len);
        let request = self.request(req)?;
        let prefix_len = match (&request.run, request.prefix_len) {
            (Some(run), _) if !run.mid_prefill => return refuse("OP-1", format!("the prefill of {req} is complete")),
            (Some(run), _) if run.prepared > 0 => {
                return refuse("LAUNCH-1", format!("the last chunk of {req} is not launched yet"))
            }
            (Some(run), _) => run.seq_len,
            (None, None) => return refuse("OP-1", format!("{req} has not matched its prefix")),
            (None, Some(prefix_len)) => prefix_len,
        };
        let (length, is_new) = (request.tokens.len(), request.run.is_none());
        if let (true, Some(record)) = (is_new, &request.record) {
            let row = record.row;
            if self.flights.iter().any(|flight| flight.reads.get(&row).is_some_and(|&read| read > prefix_len)) {
                return refuse("RACE-1", format!("a launch in flight reads what {req} would overwrite"));
            }
        } else if is_new {
            let contents = &self.requests[req].tokens.pages[..prefix_len / size];
            if self.store.find(contents, &self.pages).len() < contents.len() {
                return refuse("STORE-5", format!("what {req} matched has been evicted"));
            }
        }
        if seq_len <= prefix_len || seq_len > length {
            return refuse("OP-1", format!("seq_len {seq_len} of {req} is not in {}..{length}", prefix_len + 1));
        }
        if seq_len > max {
            return refuse("LEN-1", format!("{req} would grow to {seq_len}, past {max}"));
        }
        Ok(prefix_len)
    }

    fn check_chunks(&self, batch: &[(String, usize)]) -> Result<(), Refusal> {
        let is_chunk = |(req, seq_len): &&(String, usize)| *seq_len < self.requests[req].tokens.len();
        let continuing = batch.iter().filter(|(req, _)| self.requests[req].run.is_some()).count();
        let begun = batch.iter().filter(is_chunk).filter(|(req, _)| self.requests[req].run.is_none()).count();
        let others = self.requests.iter().filter(|(name, request)| {
            request.run.as_ref().is_some_and(|run| run.mid_prefill) && !batch.iter().any(|(req, _)| req == *name)
        });
        if continuing > 1 || begun > 1 {
            return refuse("BATCH-1", "two requests of the batch are in the middle of their prefill");
        }
        if others.count() + batch.iter().filter(is_chunk).count() > 1 {
            return refuse("BATCH-2", "two requests would be in the middle of their prefill");
        }
        Ok(())
    }

    /// The state slots that a request without a record lacks.
    fn states_missing(&self, request: &Request) -> usize {
        if self.states.exists() { self.tracking_states() + usize::from(request.state.is_none()) } else { 0 }
    }

    /// Give a request its record: a row, the prefix that it matched, its state slots. These are returned, without the
    /// one that it had already.
    fn begin(&mut self, req: &str) -> Vec<usize> {
        let missing = self.states_missing(&self.requests[req]);
        let new: Vec<usize> = (0..missing).map(|_| self.states.take()).collect();
        let row = self.free_rows.pop().unwrap();
        let request = self.requests.get_mut(req).unwrap();
        let length = request.prefix_len.unwrap();
        let path = self.store.find(&request.tokens.pages[..length / self.page_size], &self.pages);
        self.tables[row] = path.iter().map(|node| self.store.nodes[node].page).collect();
        let node = path.last().copied().unwrap_or(0);
        self.store.lock(node);
        request.record = Some(Record {
            row,
            protected: length,
            committed: length,
            allocated: length,
            node,
            cursor: 0,
            states: request.state.take().into_iter().chain(new.iter().copied()).collect(),
            state_len: 0,
            kept: BTreeMap::new(),
        });
        new
    }

    /// Extend a request that has a record, in a batch that fits: the slot of the state that it goes on from, its row
    /// and its new pages.
    fn prefill(&mut self, req: &str, seq_len: usize) -> (Option<usize>, usize, Vec<usize>) {
        let request = self.requests.get_mut(req).unwrap();
        let (length, record) = (request.tokens.len(), request.record.as_mut().unwrap());
        (record.committed, record.allocated) = (seq_len, seq_len);
        let mut source = record.states.first().copied();
        let run = match (&mut request.run, request.prefix_len.take()) {
            (Some(run), _) => run,
            (none, prefix_len) => {
                let launched = prefix_len.unwrap();
                if record.state_len != launched {
                    let cached = self.store.nodes.get(&record.node).and_then(|cached| cached.state);
                    source = record.kept.get(&launched).copied().or(cached);
                    record.state_len = launched;
                }
                source = source.filter(|_| launched > 0);
                none.insert(Run { launched, ..Run::default() })
            }
        };
        (run.seq_len, run.prepared, run.promised, run.mid_prefill) = (seq_len, seq_len, length, seq_len < length);
        request.extended = true;
        let row = record.row;
        (source, row, self.grow(row, seq_len))
    }
}
