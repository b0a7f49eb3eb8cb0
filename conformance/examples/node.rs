//! A KV-cache manager of the request level as a node for kvspec, in Rust with its standard library alone.
//!
//!     rustc -O --edition 2021 node.rs && kvspec run --impl exec:./node
//!
//! It has pages of any size, rows, a prefix store, chunked prefill, overlapped launches, streaming sessions and
//! speculative decoding; no sliding window and no recurrent states. `Manager` is the part that an engine has; `main`
//! reads operations and writes answers, and `Json` is the little of JSON that is needed for it.
//!
//! A sequence of tokens is cut into whole pages and a rest. A *record* is the memory of one holder: a row, whose block
//! table lists its pages, and three lengths in tokens that cut the positions of the row into ranges:
//!
//!     [0, protected)           pages of the prefix store, locked by this holder
//!     [protected, committed)   its own pages, with K/V that counts
//!     [committed, allocated)   its own pages, with room for drafts

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io::{self, BufRead, Write};

// ---- Tokens -----------------------------------------------------------------------------------------------------

/// What one whole page holds: token ids, or a key that stands for tokens whose ids are not given.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Page {
    Ids(Vec<i64>),
    Key(String),
}

#[derive(Clone)]
struct Tokens {
    size: usize,
    pages: Vec<Page>,
    rest: Vec<i64>,
}

impl Tokens {
    fn new(size: usize) -> Self {
        Tokens { size, pages: vec![], rest: vec![] }
    }

    fn len(&self) -> usize {
        self.pages.len() * self.size + self.rest.len()
    }

    fn push(&mut self, token: i64) {
        self.rest.push(token);
        if self.rest.len() == self.size {
            self.pages.push(Page::Ids(std::mem::take(&mut self.rest)));
        }
    }

    /// A sequence as it is written; `None` if a page key stands within a page.
    fn read(size: usize, elements: &[Json]) -> Option<Self> {
        let mut tokens = Tokens::new(size);
        for element in elements {
            match element {
                Json::Text(key) if tokens.rest.is_empty() => tokens.pages.push(Page::Key(key.clone())),
                Json::Text(_) => return None,
                number => tokens.push(number.int()),
            }
        }
        Some(tokens)
    }

    fn begins_with(&self, history: &Tokens) -> bool {
        let whole = history.pages.len();
        if self.pages.len() < whole || self.pages[..whole] != history.pages[..] {
            return false;
        }
        let following = match self.pages.get(whole) {
            Some(Page::Ids(ids)) => &ids[..],
            Some(Page::Key(_)) => return history.rest.is_empty(),
            None => &self.rest[..],
        };
        following.starts_with(&history.rest)
    }
}

// ---- The prefix store -------------------------------------------------------------------------------------------

/// One cached page, behind its parent; node 0 is the empty prefix.
struct Cached {
    parent: usize,
    content: Option<Page>,
    page: usize,
    locks: usize,
    children: usize,
    used: u64,
}

struct Store {
    nodes: HashMap<usize, Cached>,
    children: HashMap<(usize, Page), usize>,
    clock: u64,
    next: usize,
}

impl Store {
    fn new() -> Self {
        Store { nodes: HashMap::new(), children: HashMap::new(), clock: 0, next: 1 }
    }

    /// The nodes of the longest cached prefix of `pages`.
    fn walk(&mut self, pages: &[Page]) -> Vec<usize> {
        self.clock += 1;
        let mut path = vec![];
        for content in pages {
            let Some(&node) = self.children.get(&(path.last().copied().unwrap_or(0), content.clone())) else { break };
            self.nodes.get_mut(&node).unwrap().used = self.clock;
            path.push(node);
        }
        path
    }

    fn add(&mut self, parent: usize, content: Page, page: usize) -> usize {
        let node = self.next;
        self.next += 1;
        self.children.insert((parent, content.clone()), node);
        if let Some(parent) = self.nodes.get_mut(&parent) {
            parent.children += 1;
        }
        self.nodes.insert(
            node,
            Cached { parent, content: Some(content), page, locks: 0, children: 0, used: self.clock },
        );
        node
    }

    /// Take one lock back from each node of the prefix that ends at `node`.
    fn unlock(&mut self, mut node: usize) {
        while let Some(cached) = self.nodes.get_mut(&node) {
            cached.locks -= 1;
            node = cached.parent;
        }
    }

    /// Drop the unlocked leaf that was not used for the longest time, and return its page.
    fn evict(&mut self) -> Option<usize> {
        let leaves = self.nodes.iter().filter(|(_, cached)| cached.locks == 0 && cached.children == 0);
        let (&node, _) = leaves.min_by_key(|(node, cached)| (cached.used, **node))?;
        let cached = self.nodes.remove(&node).unwrap();
        self.children.remove(&(cached.parent, cached.content.unwrap()));
        if let Some(parent) = self.nodes.get_mut(&cached.parent) {
            parent.children -= 1;
        }
        Some(cached.page)
    }
}

// ---- Requests, sessions, launches -------------------------------------------------------------------------------

/// The memory of one holder. It moves as a whole between a request and its session.
struct Record {
    row: usize,
    protected: usize,
    committed: usize,
    allocated: usize,
    /// The end of its locked prefix in the store.
    node: usize,
}

/// What a request has only while it runs, from its first extend to its finish, retract or abort.
#[derive(Default)]
struct Run {
    /// The end of the last extend.
    seq_len: usize,
    mid_prefill: bool,
    /// The end of the positions that wait for a launch; 0 without any.
    prepared: usize,
    /// Positions of the speculative step that waits for a launch.
    drafts: usize,
    /// Positions of each speculative step that is launched and not verified, oldest first.
    unverified: VecDeque<usize>,
    /// So many of these have completed.
    verifiable: usize,
    /// The positions that launches have written.
    launched: usize,
    /// Tokens that are known, or that a launch in flight will sample.
    promised: usize,
}

struct Request {
    tokens: Tokens,
    session: Option<String>,
    /// The length of the last match; none before it, and while the request runs.
    prefix_len: Option<usize>,
    /// Whether it goes on with its session's record.
    resumed: bool,
    /// Whether it ever ran.
    extended: bool,
    record: Option<Record>,
    run: Option<Run>,
}

struct Session {
    history: Tokens,
    /// None without memory, and while its turn has it.
    record: Option<Record>,
    turn: Option<String>,
    closing: bool,
}

struct Flight {
    number: i64,
    /// Requests that get a token.
    sampled: Vec<String>,
    /// Requests that get positions to verify.
    drafted: Vec<String>,
    /// For each row the number of its first positions that are read.
    reads: HashMap<usize, usize>,
}

/// An operation that is not carried out and changes nothing.
struct Refusal {
    rule: &'static str,
    reason: String,
    pages_short: usize,
    rows_short: usize,
}

fn refuse<T>(rule: &'static str, reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { rule, reason: reason.into(), pages_short: 0, rows_short: 0 })
}

type Answer = Result<BTreeMap<&'static str, Json>, Refusal>;

fn answer<const N: usize>(parts: [(&'static str, Json); N]) -> Answer {
    Ok(parts.into_iter().collect())
}

// ---- The manager ------------------------------------------------------------------------------------------------

struct Manager {
    page_size: usize,
    max_context_len: usize,
    prefix_cache: bool,
    free_pages: Vec<usize>,
    free_rows: Vec<usize>,
    withheld: HashSet<usize>,
    /// The block table of each row, in pages.
    tables: Vec<Vec<usize>>,
    store: Store,
    requests: BTreeMap<String, Request>,
    sessions: BTreeMap<String, Session>,
    flights: VecDeque<Flight>,
    /// Pages that the operation under way has freed.
    freed: Vec<usize>,
}

impl Manager {
    fn new(config: &Json) -> Self {
        let (pages, rows) = (config.get("num_pages").size(), config.get("num_rows").size());
        Manager {
            page_size: config.get("page_size").size(),
            max_context_len: config.get("max_context_len").size(),
            prefix_cache: config.get("prefix_cache") != &Json::Bool(false),
            free_pages: (1..=pages).rev().collect(),
            free_rows: (0..rows).rev().collect(),
            withheld: HashSet::new(),
            tables: vec![vec![]; rows],
            store: Store::new(),
            requests: BTreeMap::new(),
            sessions: BTreeMap::new(),
            flights: VecDeque::new(),
            freed: vec![],
        }
    }

    fn carry_out(&mut self, op: &Json) -> Answer {
        self.freed.clear();
        let (req, session) = (op.get("req").text(), op.get("session").text());
        match op.get("op").text() {
            "open_session" => self.open_session(session),
            "submit" => self.submit(req, op.get("tokens").list(), session),
            "match_prefix" => self.match_prefix(req),
            "extend" => self.extend(op.get("reqs").list()),
            "decode" => self.decode(&op.get("reqs").texts(), op.get("n").int_or(1)),
            "verify" => self.verify(req, op.get("accepted").int(), op.get("tokens").list()),
            "launch" => self.launch(op.get("launch").int(), &op.get("reqs").texts()),
            "complete" => self.complete(op.get("launch").int(), op.get("tokens").pairs()),
            "cache_unfinished" => self.cache_unfinished(req, op.get("chunked") == &Json::Bool(true)),
            "finish" => self.finish(req),
            "retract" => self.retract(req),
            "abort" => self.abort(req),
            "close_session" => self.close_session(session),
            "preempt" => self.preempt(session),
            "evict" => self.evict(op.get("n").int()),
            "report" => self.report(op.get("mode").text() == "idle"),
            "snapshot" => self.snapshot(),
            other => refuse("OP-1", format!("there is no operation {other}")),
        }
    }

    // Look-ups

    fn request(&mut self, req: &str) -> Result<&mut Request, Refusal> {
        self.requests.get_mut(req).ok_or(()).or_else(|()| refuse("OP-1", format!("there is no request {req}")))
    }

    fn session(&mut self, session: &str) -> Result<&mut Session, Refusal> {
        self.sessions.get_mut(session).ok_or(()).or_else(|()| refuse("OP-1", format!("there is no session {session}")))
    }

    /// A running request: its tokens, its record and its run.
    fn running(&mut self, req: &str) -> Result<(&mut Tokens, &mut Record, &mut Run), Refusal> {
        match self.requests.get_mut(req) {
            Some(Request { tokens, record: Some(record), run: Some(run), .. }) => Ok((tokens, record, run)),
            _ => refuse("OP-1", format!("request {req} is not running")),
        }
    }

    fn freed(&mut self) -> Json {
        Json::numbers(std::mem::take(&mut self.freed))
    }

    fn released(&mut self) -> Answer {
        let freed = self.freed();
        answer([("freed", freed)])
    }

    // Waiting

    fn open_session(&mut self, name: &str) -> Answer {
        if self.sessions.contains_key(name) {
            return refuse("OP-1", format!("session {name} is open already"));
        }
        let session = Session { history: Tokens::new(self.page_size), record: None, turn: None, closing: false };
        self.sessions.insert(name.into(), session);
        answer([])
    }

    fn submit(&mut self, req: &str, elements: &[Json], name: &str) -> Answer {
        if self.requests.contains_key(req) {
            return refuse("OP-1", format!("there is a request {req} already"));
        }
        let tokens = match Tokens::read(self.page_size, elements) {
            Some(tokens) if tokens.len() > 0 => tokens,
            _ => return refuse("OP-1", "there are no tokens, or a page key stands within a page"),
        };
        if tokens.len() > self.max_context_len {
            return refuse("LEN-1", format!("{} tokens exceed the context", tokens.len()));
        }
        if !name.is_empty() {
            let session = self.session(name)?;
            if session.closing {
                return refuse("OP-1", format!("session {name} is closing"));
            }
            if session.turn.is_some() {
                return refuse("SESS-1", format!("session {name} has a turn in flight"));
            }
            if !tokens.begins_with(&session.history) {
                return refuse("SESS-6", format!("the tokens do not begin with the history of session {name}"));
            }
            session.turn = Some(req.into());
        }
        let session = (!name.is_empty()).then(|| name.to_string());
        let request =
            Request { tokens, session, prefix_len: None, resumed: false, extended: false, record: None, run: None };
        self.requests.insert(req.into(), request);
        answer([])
    }

    fn match_prefix(&mut self, req: &str) -> Answer {
        let size = self.page_size;
        let request = self.request(req)?;
        if request.run.is_some() {
            return refuse("OP-1", format!("request {req} is running"));
        }
        let key_len = request.tokens.len() - 1;
        let (session, lent) = (request.session.clone(), request.record.take());
        let record = lent.or_else(|| session.and_then(|name| self.sessions.get_mut(&name)?.record.take()));
        let (prefix_len, protected, record) = match record {
            Some(mut record) if record.committed.min(key_len) > 0 => {
                // The next extend writes from prefix_len on: whole pages behind it go back.
                let prefix_len = record.committed.min(key_len);
                let tail = self.tables[record.row].split_off(prefix_len.div_ceil(size));
                self.free(tail);
                (record.committed, record.allocated) = (prefix_len, prefix_len);
                (prefix_len, record.protected, Some(record))
            }
            other => {
                if let Some(record) = other {
                    self.release(record);
                }
                let pages = &self.requests[req].tokens.pages;
                let matched = self.store.walk(&pages[..pages.len().min(key_len / size)]).len() * size;
                (matched, matched, None)
            }
        };
        let request = self.request(req)?;
        request.prefix_len = Some(prefix_len);
        request.resumed = record.is_some();
        request.record = record;
        let freed = self.freed();
        answer([("prefix_len", prefix_len.into()), ("protected_len", protected.into()), ("freed", freed)])
    }

    // Prefill

    /// Where a request of a prefill batch begins to write, and whether it brings its row.
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
            let pages = &self.requests[req].tokens.pages[..prefix_len / size];
            if self.store.walk(pages).len() < pages.len() {
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

    fn extend(&mut self, reqs: &[Json]) -> Answer {
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
        let rows = names.iter().filter(|req| self.requests[*req].record.is_none()).count();
        self.check_room(needed, rows)?;
        let (mut rows, mut pages) = (vec![], vec![]);
        for (req, seq_len) in &batch {
            let (row, new) = self.prefill(req, *seq_len);
            rows.push((req.clone(), row.into()));
            pages.push((req.clone(), new));
        }
        answer([("rows", Json::Object(rows)), ("pages", given(pages))])
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

    fn check_room(&self, pages: usize, rows: usize) -> Result<(), Refusal> {
        let pages_short = pages.saturating_sub(self.free_pages.len());
        let rows_short = rows.saturating_sub(self.free_rows.len());
        if pages_short + rows_short > 0 {
            let reason = format!("{pages_short} pages and {rows_short} rows are missing");
            return Err(Refusal { rule: "CAP-1", reason, pages_short, rows_short });
        }
        Ok(())
    }

    /// Extend one request of a batch that fits; its row and its new pages.
    fn prefill(&mut self, req: &str, seq_len: usize) -> (usize, Vec<usize>) {
        let size = self.page_size;
        if self.requests[req].record.is_none() {
            let prefix_len = self.requests[req].prefix_len.unwrap();
            let path = self.store.walk(&self.requests[req].tokens.pages[..prefix_len / size]);
            let row = self.free_rows.pop().unwrap();
            self.tables[row].clear();
            for node in &path {
                let cached = self.store.nodes.get_mut(node).unwrap();
                cached.locks += 1;
                self.tables[row].push(cached.page);
            }
            let node = path.last().copied().unwrap_or(0);
            let record = Record { row, protected: prefix_len, committed: prefix_len, allocated: prefix_len, node };
            self.requests.get_mut(req).unwrap().record = Some(record);
        }
        let request = self.requests.get_mut(req).unwrap();
        let length = request.tokens.len();
        let record = request.record.as_mut().unwrap();
        (record.committed, record.allocated) = (seq_len, seq_len);
        let prefix_len = request.prefix_len.take();
        let run = request.run.get_or_insert_with(|| Run { launched: prefix_len.unwrap(), ..Run::default() });
        (run.seq_len, run.prepared, run.promised, run.mid_prefill) = (seq_len, seq_len, length, seq_len < length);
        request.extended = true;
        let row = record.row;
        (row, self.grow(row, seq_len))
    }

    /// Lengthen a block table so that it holds `length` tokens; the new pages.
    fn grow(&mut self, row: usize, length: usize) -> Vec<usize> {
        let missing = length.div_ceil(self.page_size).saturating_sub(self.tables[row].len());
        let new: Vec<usize> = (0..missing).map(|_| self.free_pages.pop().unwrap()).collect();
        self.tables[row].extend(&new);
        new
    }

    // Running

    fn decode(&mut self, reqs: &[String], n: i64) -> Answer {
        if n < 1 {
            return refuse("OP-1", format!("n is {n}"));
        }
        check_batch(reqs)?;
        let (n, size, max) = (n as usize, self.page_size, self.max_context_len);
        let mut needed = 0;
        for req in reqs {
            let (_, record, run) = self.running(req)?;
            let end = record.committed + run.unverified.iter().sum::<usize>() + n;
            if run.prepared > 0 || run.mid_prefill {
                return refuse("OP-1", format!("{req} has a prefill or a decode step that is not done"));
            }
            if run.unverified.len() > usize::from(n > 1) {
                return refuse("SPEC-1", format!("a speculative step of {req} is not verified yet"));
            }
            if record.committed >= run.promised {
                return refuse("OP-1", format!("{req} has no token to decode"));
            }
            if end > max {
                return refuse("LEN-1", format!("{req} would grow to {end}, past {max}"));
            }
            let row = record.row;
            needed += end.div_ceil(size).saturating_sub(self.tables[row].len());
        }
        self.check_room(needed, 0)?;
        let mut pages = vec![];
        for req in reqs {
            let (_, record, run) = self.running(req)?;
            let end = record.committed + run.unverified.iter().sum::<usize>() + n;
            run.prepared = end;
            run.drafts = if n > 1 { n } else { 0 };
            record.allocated = record.allocated.max(end);
            if n == 1 {
                record.committed = end;
            }
            let row = record.row;
            pages.push((req.clone(), self.grow(row, end)));
        }
        answer([("pages", given(pages))])
    }

    fn launch(&mut self, number: i64, reqs: &[String]) -> Answer {
        if self.flights.iter().any(|flight| flight.number == number) {
            return refuse("OP-1", format!("launch {number} is in flight"));
        }
        check_batch(reqs)?;
        for req in reqs {
            if self.running(req)?.2.prepared == 0 {
                return refuse("OP-1", format!("{req} has nothing to launch"));
            }
        }
        let mut flight = Flight { number, sampled: vec![], drafted: vec![], reads: HashMap::new() };
        for req in reqs {
            let (_, record, run) = self.running(req)?;
            run.launched = std::mem::take(&mut run.prepared);
            flight.reads.insert(record.row, run.launched);
            if run.mid_prefill {
                continue;
            }
            run.promised += 1;
            if run.drafts > 0 {
                run.unverified.push_back(std::mem::take(&mut run.drafts));
                flight.drafted.push(req.clone());
            } else {
                flight.sampled.push(req.clone());
            }
        }
        self.flights.push_back(flight);
        answer([])
    }

    fn complete(&mut self, number: i64, tokens: &[(String, Json)]) -> Answer {
        match self.flights.front() {
            Some(flight) if flight.number == number => {
                let named = |req: &String| tokens.iter().any(|(name, _)| name == req);
                if tokens.len() != flight.sampled.len() || !flight.sampled.iter().all(named) {
                    return refuse("CHUNK-1", "a token too few or too many");
                }
            }
            _ if self.flights.iter().any(|flight| flight.number == number) => {
                return refuse("LAUNCH-1", format!("launch {number} is not the oldest in flight"))
            }
            _ => return refuse("OP-1", format!("launch {number} is not in flight")),
        }
        let flight = self.flights.pop_front().unwrap();
        for (req, token) in tokens {
            self.running(req)?.0.push(token.int());
        }
        for req in &flight.drafted {
            self.running(req)?.2.verifiable += 1;
        }
        let free: Vec<usize> = self.withheld.iter().copied().filter(|&row| !self.is_read(row)).collect();
        for row in free {
            self.withheld.remove(&row);
            self.free_rows.push(row);
        }
        answer([])
    }

    fn verify(&mut self, req: &str, accepted: i64, kept: &[Json]) -> Answer {
        let (tokens, record, run) = self.running(req)?;
        if run.verifiable == 0 {
            return refuse("SPEC-1", format!("{req} has no completed speculative step"));
        }
        if run.prepared > 0 {
            return refuse("LAUNCH-1", format!("the next step of {req} is not launched yet"));
        }
        if accepted < 1 || accepted as usize > run.unverified[0] {
            return refuse("SPEC-1", format!("{accepted} accepted positions are not in 1..{}", run.unverified[0]));
        }
        let accepted = accepted as usize;
        if kept.is_empty() || kept.len() > accepted {
            return refuse("SPEC-1", format!("{} tokens for {accepted} accepted positions", kept.len()));
        }
        run.unverified.pop_front();
        run.verifiable -= 1;
        record.committed += accepted;
        kept.iter().for_each(|token| tokens.push(token.int()));
        let stopped = kept.len() < accepted;
        if stopped {
            run.unverified.clear();
            run.verifiable = 0;
        }
        run.promised = tokens.len() + run.unverified.len();
        run.launched = record.committed + run.unverified.iter().sum::<usize>();
        if stopped {
            self.forget(req);
        }
        answer([])
    }

    // Publication and release

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
        for (index, content) in tokens.pages.iter().enumerate().take(last).skip(first) {
            let own = self.tables[record.row][index];
            let node = match self.store.children.get(&(record.node, content.clone())) {
                Some(&node) => {
                    self.tables[record.row][index] = self.store.nodes[&node].page;
                    self.free(vec![own]);
                    node
                }
                None => self.store.add(record.node, content.clone(), own),
            };
            self.store.nodes.get_mut(&node).unwrap().locks += 1;
            record.node = node;
        }
        record.protected = last * self.page_size;
    }

    fn cache_unfinished(&mut self, req: &str, chunked: bool) -> Answer {
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
        if request.session.is_none() || !(request.resumed || chunked) {
            self.publish(record, &request.tokens, seq_len);
        }
        let protected = record.protected;
        self.requests.insert(req.into(), request);
        let freed = self.freed();
        answer([("protected_len", protected.into()), ("freed", freed)])
    }

    fn free(&mut self, pages: Vec<usize>) {
        self.freed.extend(&pages);
        self.free_pages.extend(pages);
    }

    /// Give back all that a record has: its own pages, its lock, its row.
    fn release(&mut self, record: Record) {
        let own = self.tables[record.row].split_off(record.protected / self.page_size);
        self.free(own);
        self.store.unlock(record.node);
        if self.is_read(record.row) {
            self.withheld.insert(record.row);
        } else {
            self.free_rows.push(record.row);
        }
    }

    fn is_read(&self, row: usize) -> bool {
        self.flights.iter().any(|flight| flight.reads.contains_key(&row))
    }

    /// Drop the results of launches in flight for a request.
    fn forget(&mut self, req: &str) {
        for flight in &mut self.flights {
            flight.sampled.retain(|name| name != req);
            flight.drafted.retain(|name| name != req);
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

    fn finish(&mut self, req: &str) -> Answer {
        let (_, _, run) = self.running(req)?;
        if run.mid_prefill {
            return refuse("OP-1", format!("{req} is in the middle of its prefill"));
        }
        if run.prepared > 0 {
            return refuse("LAUNCH-1", format!("what {req} has prepared is not launched yet"));
        }
        self.forget(req);
        let request = self.requests.remove(req).unwrap();
        let (mut record, run) = (request.record.unwrap(), request.run.unwrap());
        match request.session {
            None => {
                let kept = record.committed.min(request.tokens.len());
                self.publish(&mut record, &request.tokens, kept);
                self.release(record);
            }
            Some(name) => {
                self.hand_back(&name, record, run.launched, request.tokens.len());
                self.sessions.get_mut(&name).unwrap().history = request.tokens;
                self.end_turn(&name);
            }
        }
        self.released()
    }

    fn retract(&mut self, req: &str) -> Answer {
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

    fn abort(&mut self, req: &str) -> Answer {
        self.request(req)?;
        self.forget(req);
        let request = self.requests.remove(req).unwrap();
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

    fn close_session(&mut self, name: &str) -> Answer {
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

    fn preempt(&mut self, name: &str) -> Answer {
        let Some(record) = self.session(name)?.record.take() else {
            return refuse("OP-1", format!("session {name} holds nothing, or its turn has it"));
        };
        self.release(record);
        self.released()
    }

    fn evict(&mut self, n: i64) -> Answer {
        if n < 1 {
            return refuse("OP-1", format!("{n} pages are nothing to evict"));
        }
        let mut evicted = vec![];
        while evicted.len() < n as usize {
            let Some(page) = self.store.evict() else { break };
            evicted.push(page);
        }
        self.free_pages.extend(&evicted);
        answer([("evicted", Json::numbers(evicted))])
    }

    // Inspection

    fn held(&self, record: &Record) -> usize {
        record.allocated.div_ceil(self.page_size) * self.page_size - record.protected
    }

    fn report(&mut self, idle: bool) -> Answer {
        let requests: Vec<&Record> = self.requests.values().filter_map(|request| request.record.as_ref()).collect();
        let sessions: Vec<&Record> = self.sessions.values().filter_map(|session| session.record.as_ref()).collect();
        if idle && !requests.is_empty() {
            return refuse("OP-1", "a request holds memory");
        }
        let locked = self.store.nodes.values().filter(|cached| cached.locks > 0).count();
        let tokens = |pages: usize| Json::from(pages * self.page_size);
        answer([
            ("available", tokens(self.free_pages.len())),
            ("evictable", tokens(self.store.nodes.len() - locked)),
            ("protected", tokens(locked)),
            ("session_held", sessions.iter().map(|record| self.held(record)).sum::<usize>().into()),
            ("uncached", requests.iter().map(|record| self.held(record)).sum::<usize>().into()),
            ("rows_available", self.free_rows.len().into()),
            ("rows_requests", requests.len().into()),
            ("rows_sessions", sessions.len().into()),
            ("rows_withheld", self.withheld.len().into()),
        ])
    }

    fn snapshot(&mut self) -> Answer {
        let requests = self.requests.iter().filter_map(|(name, one)| Some((name, one.record.as_ref()?)));
        let sessions = self.sessions.iter().filter_map(|(name, one)| Some((name, one.record.as_ref()?)));
        let (requests, sessions): (Vec<_>, Vec<_>) = (requests.collect(), sessions.collect());
        let rows = requests.iter().chain(&sessions).map(|(_, record)| (record.row.to_string(), self.slots(record)));
        let locked = self.store.nodes.values().filter(|cached| cached.locks > 0);
        answer([
            ("rows", Json::Object(rows.collect())),
            ("free_rows", Json::numbers(self.free_rows.clone())),
            ("withheld_rows", Json::numbers(self.withheld.iter().copied().collect())),
            ("free_pages", Json::numbers(self.free_pages.clone())),
            ("store_pages", Json::numbers(self.store.nodes.values().map(|cached| cached.page).collect())),
            ("requests", views(&requests)),
            ("sessions", views(&sessions)),
            ("locks", Json::Object(locked.map(|one| (one.page.to_string(), one.locks.into())).collect())),
        ])
    }

    /// The slot of each allocated position, a run for each page.
    fn slots(&self, record: &Record) -> Json {
        let size = self.page_size;
        let pages = self.tables[record.row].iter().enumerate();
        let runs = pages.filter(|(index, _)| index * size < record.allocated).map(|(index, page)| {
            Json::List(vec![(page * size).into(), size.min(record.allocated - index * size).into()])
        });
        Json::List(runs.collect())
    }
}

fn check_batch(reqs: &[String]) -> Result<(), Refusal> {
    if reqs.is_empty() || reqs.iter().collect::<HashSet<_>>().len() < reqs.len() {
        return refuse("OP-1", "the batch is empty, or has a request twice");
    }
    Ok(())
}

fn given(pages: Vec<(String, Vec<usize>)>) -> Json {
    let some = pages.into_iter().filter(|(_, new)| !new.is_empty());
    Json::Object(some.map(|(req, new)| (req, Json::numbers(new))).collect())
}

fn views(holders: &[(&String, &Record)]) -> Json {
    let view = |record: &Record| {
        Json::Object(vec![
            ("row".into(), record.row.into()),
            ("protected_len".into(), record.protected.into()),
            ("committed_len".into(), record.committed.into()),
            ("allocated_len".into(), record.allocated.into()),
        ])
    };
    Json::Object(holders.iter().map(|(name, record)| (name.to_string(), view(record))).collect())
}

// ---- Lines ------------------------------------------------------------------------------------------------------

const HELLO: &str = r#"{"kvspec": 2, "name": "node.rs", "version": "1", "unsupported": ["sliding_window", "recurrent_states"], "reset": true}"#;

fn main() -> io::Result<()> {
    let mut output = io::stdout().lock();
    writeln!(output, "{HELLO}")?;
    output.flush()?;
    let mut manager = None;
    for line in io::stdin().lock().lines() {
        let read = Json::read(&line?);
        if read.get("op") == &Json::Null {
            manager = Some(Manager::new(read.get("config")));
            continue;
        }
        let mut reply = vec![("op".to_string(), read.get("op").clone())];
        reply.push(match manager.as_mut().expect("a header comes first").carry_out(&read) {
            Ok(parts) => {
                ("obs".into(), Json::Object(parts.into_iter().map(|(name, part)| (name.into(), part)).collect()))
            }
            Err(refusal) => (
                "refused".into(),
                Json::Object(vec![
                    ("rule".into(), Json::Text(refusal.rule.into())),
                    ("reason".into(), Json::Text(refusal.reason)),
                    ("pages_short".into(), refusal.pages_short.into()),
                    ("rows_short".into(), refusal.rows_short.into()),
                ]),
            ),
        });
        let mut line = String::new();
        Json::Object(reply).write(&mut line);
        line.push('\n');
        output.write_all(line.as_bytes())?;
        output.flush()?;
    }
    Ok(())
}

#[derive(Clone, PartialEq)]
enum Json {
    Null,
    Bool(bool),
    Number(i64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl From<usize> for Json {
    fn from(number: usize) -> Self {
        Json::Number(number as i64)
    }
}

impl Json {
    fn numbers(numbers: Vec<usize>) -> Self {
        Json::List(numbers.into_iter().map(Json::from).collect())
    }

    fn get(&self, key: &str) -> &Json {
        self.pairs().iter().find(|(name, _)| name == key).map_or(&Json::Null, |(_, value)| value)
    }

    fn pairs(&self) -> &[(String, Json)] {
        if let Json::Object(pairs) = self { pairs } else { &[] }
    }

    fn list(&self) -> &[Json] {
        if let Json::List(list) = self { list } else { &[] }
    }

    fn text(&self) -> &str {
        if let Json::Text(text) = self { text } else { "" }
    }

    fn texts(&self) -> Vec<String> {
        self.list().iter().map(|one| one.text().to_string()).collect()
    }

    fn int_or(&self, otherwise: i64) -> i64 {
        if let Json::Number(number) = self { *number } else { otherwise }
    }

    fn int(&self) -> i64 {
        self.int_or(0)
    }

    fn size(&self) -> usize {
        self.int().max(0) as usize
    }

    /// The value of a line. kvspec writes no fractions, and nothing that is malformed.
    fn read(line: &str) -> Json {
        Json::value(&mut line.chars().peekable())
    }

    fn value(rest: &mut std::iter::Peekable<impl Iterator<Item = char>>) -> Json {
        while rest.next_if(|c| c.is_whitespace() || *c == ',' || *c == ':').is_some() {}
        match rest.next() {
            Some('"') => Json::Text(Json::string(rest)),
            Some('[') => {
                let mut list = vec![];
                while !Json::ends(rest, ']') {
                    list.push(Json::value(rest));
                }
                Json::List(list)
            }
            Some('{') => {
                let mut pairs = vec![];
                while !Json::ends(rest, '}') {
                    let key = Json::value(rest).text().to_string();
                    pairs.push((key, Json::value(rest)));
                }
                Json::Object(pairs)
            }
            Some(first) => {
                let mut word = first.to_string();
                while let Some(c) = rest.next_if(|c| c.is_alphanumeric() || "+-.".contains(*c)) {
                    word.push(c);
                }
                match word.as_str() {
                    "null" => Json::Null,
                    "true" | "false" => Json::Bool(word == "true"),
                    number => Json::Number(number.parse().expect("a number")),
                }
            }
            None => panic!("the line ends in the middle of a value"),
        }
    }

    fn ends(rest: &mut std::iter::Peekable<impl Iterator<Item = char>>, end: char) -> bool {
        while rest.next_if(|c| c.is_whitespace() || *c == ',').is_some() {}
        rest.next_if_eq(&end).is_some()
    }

    /// The rest of a string, whose first quotation mark has been read.
    fn string(rest: &mut impl Iterator<Item = char>) -> String {
        let mut units: Vec<u16> = vec![];
        loop {
            let c = rest.next().expect("the end of a string");
            let c = match c {
                '"' => return String::from_utf16(&units).expect("pairs of surrogates"),
                '\\' => match rest.next().expect("an escape") {
                    'u' => {
                        let digits: String = rest.by_ref().take(4).collect();
                        units.push(u16::from_str_radix(&digits, 16).expect("four hexadecimal digits"));
                        continue;
                    }
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    other => other,
                },
                c => c,
            };
            units.extend(c.encode_utf16(&mut [0; 2]).iter());
        }
    }

    fn write(&self, out: &mut String) {
        match self {
            Json::Null => out.push_str("null"),
            Json::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Json::Number(number) => out.push_str(&number.to_string()),
            Json::Text(text) => Json::write_text(text, out),
            Json::List(list) => {
                out.push('[');
                for (index, one) in list.iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    one.write(out);
                }
                out.push(']');
            }
            Json::Object(pairs) => {
                out.push('{');
                for (index, (key, value)) in pairs.iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    Json::write_text(key, out);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }

    fn write_text(text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
                c => out.push(c),
            }
        }
        out.push('"');
    }
}
