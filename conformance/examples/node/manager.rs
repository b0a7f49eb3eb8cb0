//! The manager: what it remembers of requests, sessions and launches, and which operation is carried out where.

use crate::json::Json;
use crate::pools::{Pages, Pool};
use crate::store::Store;
use crate::tokens::Tokens;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

mod inspection;
mod prefill;
mod release;
mod running;
mod waiting;

/// The memory of one holder. It moves as a whole between a request and its session.
struct Record {
    row: usize,
    protected: usize,
    committed: usize,
    allocated: usize,
    /// The end of its locked prefix in the store.
    node: usize,
    /// The window sides of its own pages before this position are given back.
    cursor: usize,
    /// Its state slots: first the one that it computes in; none without recurrent states.
    states: Vec<usize>,
    /// After how many tokens the state stands that it computes in.
    state_len: usize,
    /// Page border -> the slot that keeps the state there.
    kept: BTreeMap<usize, usize>,
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
    /// The state slot that it was given before its row.
    state: Option<usize>,
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
    /// For each row the number of its first positions that are read; none if the launch took a copy along.
    reads: HashMap<usize, usize>,
}

/// An operation that is not carried out and changes nothing.
pub struct Refusal {
    pub rule: &'static str,
    pub reason: String,
    /// How much of each kind of memory is missing.
    pub short: Vec<(&'static str, usize)>,
}

fn refuse<T>(rule: &'static str, reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { rule, reason: reason.into(), short: vec![] })
}

/// The parts of an answer. A part that is null says nothing.
pub type Answer = Result<Vec<(&'static str, Json)>, Refusal>;

/// Ways that engines choose and a config names; each is the usual one if its field is false.
struct Policies {
    /// Rows that a launch reads are free at once: it took a copy along, or the stream orders later writes.
    frees_read_rows: bool,
    /// Each chunk of a session's first turn is published, not only the last one.
    publishes_chunks: bool,
    /// What a turn has is counted as its session's.
    turns_are_sessions: bool,
    /// At a finish the pages of tokens past the request's stop are published, too.
    publishes_overshoot: bool,
}

pub struct Manager {
    page_size: usize,
    max_context_len: usize,
    prefix_cache: bool,
    /// How many positions a query reads back; 0 without a sliding window.
    window: usize,
    policies: Policies,
    pages: Pages,
    states: Pool,
    free_rows: Vec<usize>,
    withheld: BTreeSet<usize>,
    /// The block table of each row, in pages.
    tables: Vec<Vec<usize>>,
    store: Store,
    requests: BTreeMap<String, Request>,
    sessions: BTreeMap<String, Session>,
    flights: VecDeque<Flight>,
    /// Stands for the next token past a request's stop, which no caller reports: no token of a vector.
    unknown_token: i64,
}

impl Manager {
    pub fn new(config: &Json) -> Self {
        let size = |name| config.get(name).size();
        let chooses = |name, ways: &[&str]| ways.contains(&config.get(name).text());
        let (page_size, rows) = (size("page_size"), size("num_rows"));
        let (window, states) = (size("sliding_window"), size("num_states"));
        Manager {
            page_size,
            max_context_len: size("max_context_len"),
            prefix_cache: config.get("prefix_cache") != &Json::Bool(false),
            window,
            policies: Policies {
                frees_read_rows: chooses("rows_read", &["at_launch", "in_order"]),
                publishes_chunks: chooses("first_turn_chunks", &["published"]),
                turns_are_sessions: chooses("turns_count_as", &["sessions"]),
                publishes_overshoot: chooses("overshoot", &["published"]),
            },
            pages: Pages::new(size("num_pages"), size("num_window_pages")),
            states: Pool::new(states),
            free_rows: (0..rows).rev().collect(),
            withheld: BTreeSet::new(),
            tables: vec![vec![]; rows],
            store: Store::new(window.div_ceil(page_size), states > 0),
            requests: BTreeMap::new(),
            sessions: BTreeMap::new(),
            flights: VecDeque::new(),
            unknown_token: i64::MIN,
        }
    }

    pub fn carry_out(&mut self, op: &Json) -> Answer {
        for pool in [&mut self.pages.full, &mut self.pages.window, &mut self.states] {
            pool.freed.clear();
        }
        let (req, session) = (op.get("req").text(), op.get("session").text());
        match op.get("op").text() {
            "open_session" => self.open_session(session),
            "submit" => self.submit(req, op.get("tokens").list(), op.get("session").text_or_none()),
            "match_prefix" => self.match_prefix(req),
            "take_state" => self.take_state(req),
            "free_state" => self.free_state(req),
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
            "evict" => self.evict(op.get("n").int(), op.get("window").int(), op.get("states").int()),
            "swa_evict" => self.swa_evict(req),
            "report" => self.report(op.get("mode").text() == "idle"),
            "snapshot" => self.snapshot(),
            other => refuse("OP-1", format!("there is no operation {other}")),
        }
    }

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

    /// State slots of a record besides the one that it computes in.
    fn tracking_states(&self) -> usize {
        if self.states.exists() && self.prefix_cache { 2 } else { 0 }
    }

    fn check_room(&self, pages: usize, rows: usize, states: usize) -> Result<(), Refusal> {
        let window = if self.window > 0 { self.pages.window.short_of(pages) } else { 0 };
        let short = vec![
            ("pages_short", self.pages.full.short_of(pages)),
            ("rows_short", rows.saturating_sub(self.free_rows.len())),
            ("window_short", window),
            ("states_short", self.states.short_of(states)),
        ];
        if short.iter().all(|(_, missing)| *missing == 0) {
            return Ok(());
        }
        Err(Refusal { rule: "CAP-1", reason: "there is no room".into(), short })
    }

    /// Lengthen a block table so that it holds `length` tokens; the new pages.
    fn grow(&mut self, row: usize, length: usize) -> Vec<usize> {
        let missing = length.div_ceil(self.page_size).saturating_sub(self.tables[row].len());
        let new: Vec<usize> = (0..missing).map(|_| self.pages.take()).collect();
        self.tables[row].extend(&new);
        new
    }

    /// Parts of an answer: the new pages of each request, and their window sides.
    fn given(&self, pages: &[(String, Vec<usize>)]) -> [(&'static str, Json); 2] {
        let sides = pages.iter().map(|(req, new)| (req.clone(), self.pages.sides_of(new))).collect();
        [("pages", given(pages.to_vec())), ("window_pages", self.pages.window.optional(given(sides)))]
    }
}

/// What each request is given; who is given nothing is not named.
fn given(numbers: Vec<(String, Vec<usize>)>) -> Json {
    let some = numbers.into_iter().filter(|(_, new)| !new.is_empty());
    Json::Object(some.map(|(req, new)| (req, new.into())).collect())
}

fn check_batch(reqs: &[String]) -> Result<(), Refusal> {
    if reqs.is_empty() || reqs.iter().collect::<BTreeSet<_>>().len() < reqs.len() {
        return refuse("OP-1", "the batch is empty, or has a request twice");
    }
    Ok(())
}
