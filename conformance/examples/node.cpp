// A KV-cache manager of the request level as a node for kvspec, in C++17 with its standard library alone.
//
//     g++ -std=c++17 -O2 -o node node.cpp && kvspec run --impl exec:./node
//
// It has pages of any size, rows, a prefix store, chunked prefill, overlapped launches, streaming sessions and
// speculative decoding; no sliding window and no recurrent states. `Manager` is the part that an engine has. What comes
// after it reads operations and writes answers, and `Json` is the little of JSON that is needed for it.

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <deque>
#include <exception>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace {

using Int = std::int64_t;
using Page = Int;  // the number of a page, from 1; 0 stands for the empty prefix
using Pages = std::vector<Page>;
using Name = std::string;  // of a request or a session

template <class Container> Int length(const Container& container) { return static_cast<Int>(container.size()); }

template <class T> std::optional<T> take(std::optional<T>& from) { return std::exchange(from, std::nullopt); }

void append(Pages& pages, const Pages& more) { pages.insert(pages.end(), more.begin(), more.end()); }

// ---- Refusals -------------------------------------------------------------------------------------------------------

// An operation that is not carried out, and changes nothing: each operation checks all before it changes anything.
struct Refusal {
    std::string rule;
    std::string reason;
    Int pages_short = 0;
    Int rows_short = 0;
};

template <class... Parts> [[noreturn]] void refuse(const char* rule, const Parts&... parts) {
    std::ostringstream reason;
    (reason << ... << parts);
    throw Refusal{rule, reason.str()};
}

// ---- Tokens ---------------------------------------------------------------------------------------------------------

using Ids = std::vector<Int>;
using Key = std::string;                 // stands for one whole page of tokens whose ids are not given
using Token = std::variant<Int, Key>;    // as it is submitted
using Content = std::variant<Ids, Key>;  // of one whole page

// A sequence of tokens, cut into whole pages and a rest that is shorter than a page.
class Tokens {
public:
    explicit Tokens(Int page_size) : page_size_(page_size) {}

    Int size() const { return length(pages_) * page_size_ + length(rest_); }

    const std::vector<Content>& pages() const { return pages_; }

    void push_back(Int id) {
        rest_.push_back(id);
        if (length(rest_) == page_size_) pages_.emplace_back(std::exchange(rest_, {}));
    }

    // Whether the key stands at a page border, as it must.
    bool push_back(const Key& key) {
        if (!rest_.empty()) return false;
        pages_.emplace_back(key);
        return true;
    }

    bool begins_with(const Tokens& other) const {
        const auto whole = other.pages_.size();
        if (pages_.size() < whole) return false;
        if (!std::equal(other.pages_.begin(), other.pages_.end(), pages_.begin())) return false;
        if (other.rest_.empty()) return true;
        const Ids* next = pages_.size() == whole ? &rest_ : std::get_if<Ids>(&pages_[whole]);
        return next && next->size() >= other.rest_.size() &&
               std::equal(other.rest_.begin(), other.rest_.end(), next->begin());
    }

private:
    Int page_size_;
    std::vector<Content> pages_;
    Ids rest_;
};

// ---- The prefix store -----------------------------------------------------------------------------------------------

// Page-aligned prefixes, each under the page that holds its last tokens. A prefix is found from the one that is a page
// shorter; the empty one has page 0. Who holds a prefix locks each of its pages.
class PrefixStore {
public:
    // The pages of the longest prefix of the first `limit` pages of tokens.
    Pages match(const std::vector<Content>& tokens, Int limit) {
        ++clock_;
        Pages path;
        while (length(path) < limit) {
            const auto page = longer(path.empty() ? 0 : path.back(), tokens[path.size()]);
            if (!page) break;
            path.push_back(*page);
        }
        return path;
    }

    void lock(const Pages& path) {
        for (const Page page : path) ++entries_.at(page).locks;
    }

    void unlock(const Pages& path) {
        for (const Page page : path) --entries_.at(page).locks;
    }

    // Take the pages [first, last) of a block table, which hold these tokens, and lock them; the pages before are here
    // and locked. Where a prefix is known already, the table gets the page that is here. Returns its own pages of
    // these.
    Pages publish(const std::vector<Content>& tokens, Int first, Int last, Pages& table) {
        ++clock_;
        Pages duplicates;
        for (Int index = first; index < last; ++index) {
            const Page shorter = index > 0 ? table[index - 1] : 0;
            if (const auto known = longer(shorter, tokens[index])) {
                duplicates.push_back(std::exchange(table[index], *known));
            } else {
                pages_.emplace(Step(shorter, tokens[index]), table[index]);
                entries_.emplace(table[index], Entry{shorter, tokens[index], clock_});
                if (shorter > 0) ++entries_.at(shorter).children;
            }
            ++entries_.at(table[index]).locks;
        }
        return duplicates;
    }

    // Drop `n` pages, or all that may go: unlocked leaves, those first that were not used for the longest time.
    Pages evict(Int n) {
        std::set<std::pair<Int, Page>> leaves;
        for (const auto& [page, entry] : entries_) {
            if (entry.may_go()) leaves.emplace(entry.used, page);
        }
        Pages evicted;
        while (length(evicted) < n && !leaves.empty()) {
            const Page page = leaves.begin()->second;
            leaves.erase(leaves.begin());
            const Entry entry = std::move(entries_.extract(page).mapped());
            pages_.erase(Step(entry.shorter, entry.tokens));
            evicted.push_back(page);
            if (entry.shorter == 0) continue;
            Entry& parent = entries_.at(entry.shorter);
            --parent.children;
            if (parent.may_go()) leaves.emplace(parent.used, entry.shorter);
        }
        return evicted;
    }

    Pages pages() const {
        Pages all;
        for (const auto& [page, entry] : entries_) all.push_back(page);
        return all;
    }

    // How many holders have locked each page that is locked.
    std::map<Page, Int> locks() const {
        std::map<Page, Int> locks;
        for (const auto& [page, entry] : entries_) {
            if (entry.locks > 0) locks.emplace(page, entry.locks);
        }
        return locks;
    }

private:
    using Step = std::pair<Page, Content>;  // from a prefix to one that is a page longer

    struct Entry {
        Page shorter;  // the page of the prefix that is a page shorter
        Content tokens;
        Int used;
        Int children = 0;
        Int locks = 0;

        bool may_go() const { return children == 0 && locks == 0; }
    };

    std::optional<Page> longer(Page shorter, const Content& tokens) {
        const auto found = pages_.find(Step(shorter, tokens));
        if (found == pages_.end()) return std::nullopt;
        entries_.at(found->second).used = clock_;
        return found->second;
    }

    std::map<Step, Page> pages_;
    std::map<Page, Entry> entries_;
    Int clock_ = 0;
};

// ---- Requests, sessions, launches -----------------------------------------------------------------------------------

// The memory of one holder. It moves as a whole between a request and its session. Three lengths cut its positions:
//
//     [0, protected)           pages of the prefix store, locked by this holder
//     [protected, committed)   its own pages, with K/V that counts
//     [committed, allocated)   its own pages, with room for drafts, or left over
struct Record {
    Int row;
    Pages table;  // the page of each P positions
    Int protected_len;
    Int committed;
    Int allocated;
    Int written;  // the positions that launches have written, though they may still be in flight
};

// The part of a prefill or a decode step that waits for a launch.
struct Prepared {
    Int end;  // of the positions that it reads and writes
    bool samples;
    Int drafted;  // positions of a speculative step, that are to be verified; else 0
};

// A speculative step that is launched and not verified.
struct SpeculativeStep {
    Int positions;
    bool completed;
};

// What a request has only while it runs, from its first extend to its finish, retract or abort.
struct Run {
    Int number;       // by which a launch knows for which run of a request it was
    Int seq_len = 0;  // the end of the last extend
    bool mid_prefill = false;
    std::optional<Prepared> prepared = {};
    Int awaited = 0;                         // tokens that launches in flight will bring
    std::deque<SpeculativeStep> steps = {};  // oldest first

    // Positions that wait to be verified.
    Int unverified() const {
        Int positions = 0;
        for (const auto& step : steps) positions += step.positions;
        return positions;
    }
};

// It waits, until it has matched a prefix, until it runs.
struct Request {
    Tokens tokens;
    std::optional<Name> session;
    std::optional<Int> prefix_len = {};  // of its match; none while it runs
    std::optional<Run> run = {};
    std::optional<Record> record = {};  // while it runs, and while its session lends it
    bool resumed = false;               // goes on with the record of its session
    bool extended = false;              // has run, though it may wait again
};

struct Session {
    Tokens history;
    std::optional<Record> record = {};  // none without memory, and while its turn has it
    bool in_turn = false;
    bool closing = false;
};

// What a launch does for one request.
struct Passage {
    Name req;
    Int run;
    Int row;
    Prepared part;
};

struct Launch {
    Int number;
    std::vector<Passage> passages;
};

// ---- The manager ----------------------------------------------------------------------------------------------------

struct Config {
    Int page_size;
    Int num_pages;
    Int num_rows;
    Int max_context_len;
    bool prefix_cache;
    bool withholds_rows;       // launches read rows until they complete
    bool publishes_chunks;     // those of a session's first turn, too
    bool counts_for_sessions;  // in the figures, what a turn has
};

// The answer of an operation that has nothing to say.
struct Done {};

struct Match {
    Int prefix_len;
    Int protected_len;
    Pages freed;
};

struct Extended {
    std::map<Name, Int> rows;
    std::map<Name, Pages> pages;
};

struct Publication {
    Int protected_len;
    Pages freed;
};

using Figures = std::map<std::string, Int>;

using Holders = std::map<Name, const Record*>;

struct Snapshot {
    Pages store_pages;
    std::map<Page, Int> locks;  // of the pages of the store that are locked, by how many holders
    Pages free_pages;
    std::vector<Int> free_rows;
    std::vector<Int> withheld_rows;
    Holders requests;
    Holders sessions;
};

class Manager {
public:
    using Batch = std::vector<Name>;
    using Chunks = std::vector<std::pair<Name, Int>>;  // requests, each with where it is to be prefilled up to

    explicit Manager(const Config& config) : config_(config) {
        for (Page page = config.num_pages; page >= 1; --page) free_pages_.push_back(page);
        for (Int row = config.num_rows - 1; row >= 0; --row) free_rows_.push_back(row);
    }

    // -- Requests that wait

    Done submit(const Name& req, const std::vector<Token>& given, const Name* name) {
        if (requests_.count(req) > 0) refuse("OP-1", "there is a request ", req, " already");
        Tokens tokens(config_.page_size);
        for (const Token& token : given) {
            if (const Int* id = std::get_if<Int>(&token)) {
                tokens.push_back(*id);
            } else if (!tokens.push_back(std::get<Key>(token))) {
                refuse("OP-1", "a page key stands within a page");
            }
        }
        if (tokens.size() == 0) refuse("OP-1", "there are no tokens");
        if (tokens.size() > config_.max_context_len) refuse("LEN-1", tokens.size(), " tokens exceed the context");
        if (name) {
            Session& session = find_session(*name);
            if (session.closing) refuse("OP-1", "session ", *name, " is closing");
            if (session.in_turn) refuse("SESS-1", "session ", *name, " has a turn in flight");
            if (!tokens.begins_with(session.history)) refuse("SESS-6", "the history of ", *name, " is not continued");
            session.in_turn = true;
        }
        requests_.emplace(req, Request{std::move(tokens), name ? std::optional(*name) : std::nullopt});
        return {};
    }

    Match match_prefix(const Name& req) {
        Request& request = find_request(req);
        if (request.run) refuse("OP-1", "request ", req, " runs");
        const Int reusable = request.tokens.size() - 1;  // the last token is computed again: its logits are needed
        Pages freed;
        if (auto record = take(memory_of(request))) {
            const Int kept = std::min(record->committed, reusable);
            if (kept > 0) {
                freed = cut(*record, kept);
                record->committed = record->allocated = record->written = kept;
                request.record = std::move(record);
                request.prefix_len = kept;
                request.resumed = true;
                return {kept, request.record->protected_len, freed};
            }
            freed = release(*std::move(record));
        }
        const Int found = length(store_.match(request.tokens.pages(), floor_pages(reusable))) * config_.page_size;
        request.prefix_len = found;
        request.resumed = false;
        return {found, found, freed};
    }

    // -- Prefill

    Extended extend(const Chunks& batch) {
        Batch reqs;
        for (const auto& [req, seq_len] : batch) reqs.push_back(req);
        refuse_repetition(reqs);
        Int pages = 0, rows = 0;
        for (const auto& [req, seq_len] : batch) {
            pages += ceil_pages(seq_len) - ceil_pages(check_prefill(req, seq_len));
            rows += !requests_.at(req).record;
        }
        check_chunks(batch);
        check_room(pages, rows);

        Extended answer;
        for (const auto& [req, seq_len] : batch) {
            Request& request = requests_.at(req);
            Record& record = request.record ? *request.record : admit(request);
            answer.rows[req] = record.row;
            answer.pages[req] = grow(record, seq_len);
            record.committed = seq_len;
            if (!request.run) request.run = Run{++runs_};
            Run& run = *request.run;
            run.seq_len = seq_len;
            run.mid_prefill = seq_len < request.tokens.size();
            run.prepared = Prepared{seq_len, !run.mid_prefill, 0};
            request.prefix_len.reset();
            request.extended = true;
        }
        return answer;
    }

    Publication cache_unfinished(const Name& req, bool chunked) {
        auto [request, record, run] = find_running(req);
        if (run.prepared) refuse("LAUNCH-1", "what ", req, " has prepared is not launched yet");
        if (chunked != run.mid_prefill) refuse("CHUNK-1", "whether more of ", req, " is to come is ", !chunked);
        if (!chunked && request.tokens.size() == run.seq_len) {
            refuse("CHUNK-1", "the token that follows what ", req, " has prefilled is not sampled yet");
        }
        const bool kept_out = request.session && (request.resumed || (chunked && !config_.publishes_chunks));
        Pages freed;
        if (!kept_out) freed = publish(record, request.tokens, run.seq_len);
        return {record.protected_len, freed};
    }

    // -- Decode steps and launches

    std::map<Name, Pages> decode(const Batch& reqs, Int n) {
        if (n < 1) refuse("OP-1", "a step has ", n, " positions");
        refuse_repetition(reqs);
        const auto end_of_step = [n](const Running& one) { return one.record.committed + one.run.unverified() + n; };
        Int pages = 0;
        for (const Name& req : reqs) {
            const Running one = find_running(req);
            const auto& [request, record, run] = one;
            const Int end = end_of_step(one);
            if (run.mid_prefill || run.prepared) refuse("OP-1", req, " has a chunk or a step that is not done");
            if (length(run.steps) > (n > 1 ? 1 : 0)) refuse("SPEC-1", "a step of ", req, " is not verified yet");
            if (record.committed >= request.tokens.size() + run.awaited) refuse("OP-1", req, " has no token to decode");
            if (end > config_.max_context_len) refuse("LEN-1", req, " would grow past the context");
            pages += std::max<Int>(0, ceil_pages(end) - length(record.table));
        }
        check_room(pages, 0);

        std::map<Name, Pages> answer;
        for (const Name& req : reqs) {
            const Running one = find_running(req);
            const Int end = end_of_step(one);
            answer[req] = grow(one.record, end);
            one.run.prepared = Prepared{end, n == 1, n == 1 ? 0 : n};
            if (n == 1) one.record.committed = end;
        }
        return answer;
    }

    Done launch(Int number, const Batch& reqs) {
        if (is_in_flight(number)) refuse("OP-1", "launch ", number, " is in flight");
        refuse_repetition(reqs);
        for (const Name& req : reqs) {
            if (!find_running(req).run.prepared) refuse("OP-1", req, " has nothing to launch");
        }
        Launch launch{number, {}};
        for (const Name& req : reqs) {
            auto [request, record, run] = find_running(req);
            const Prepared part = *take(run.prepared);
            record.written = part.end;
            run.awaited += part.samples;
            if (part.drafted > 0) run.steps.push_back({part.drafted, false});
            launch.passages.push_back({req, run.number, record.row, part});
        }
        launches_.push_back(std::move(launch));
        return {};
    }

    Done complete(Int number, const std::map<Name, Int>& tokens) {
        if (!is_in_flight(number)) refuse("OP-1", "launch ", number, " is not in flight");
        const Launch launch = launches_.front();
        if (launch.number != number) refuse("LAUNCH-1", "launch ", number, " is not the oldest in flight");
        std::set<Name> due;
        for (const Passage& passage : launch.passages) {
            if (passage.part.samples && find_run(passage)) due.insert(passage.req);
        }
        const auto same = [](const auto& token, const Name& req) { return token.first == req; };
        if (!std::equal(tokens.begin(), tokens.end(), due.begin(), due.end(), same)) {
            refuse("CHUNK-1", "there are ", tokens.size(), " tokens for ", due.size(), " requests, or for others");
        }

        launches_.pop_front();
        for (const Passage& passage : launch.passages) {
            Run* run = find_run(passage);
            if (!run) continue;
            if (passage.part.samples) {
                requests_.at(passage.req).tokens.push_back(tokens.at(passage.req));
                --run->awaited;
            }
            if (passage.part.drafted > 0) {
                const auto step = std::find_if(run->steps.begin(), run->steps.end(),
                                               [](const SpeculativeStep& one) { return !one.completed; });
                if (step != run->steps.end()) step->completed = true;  // a request that has stopped has dropped it
            }
        }
        free_unread_rows();
        return {};
    }

    Done verify(const Name& req, Int accepted, const Ids& kept) {
        auto [request, record, run] = find_running(req);
        if (run.steps.empty() || !run.steps.front().completed) refuse("SPEC-1", req, " has no step to verify");
        if (run.prepared) refuse("LAUNCH-1", "the next step of ", req, " is not launched yet");
        const Int positions = run.steps.front().positions;
        if (accepted < 1 || accepted > positions) refuse("SPEC-1", accepted, " positions are not in 1..", positions);
        if (kept.empty() || length(kept) > accepted) refuse("SPEC-1", kept.size(), " tokens for ", accepted);
        run.steps.pop_front();
        if (length(kept) < accepted) run.steps.clear();  // it has stopped: its next step is dropped
        for (const Int token : kept) request.tokens.push_back(token);
        record.committed += accepted;
        record.written = record.committed + run.unverified();
        return {};
    }

    // -- Ways out; an operation returns the pages that go back

    Pages finish(const Name& req) {
        const auto& run = find_running(req).run;
        if (run.mid_prefill) refuse("OP-1", req, " is in the middle of its prefill");
        if (run.prepared) refuse("LAUNCH-1", "what ", req, " has prepared is not launched yet");
        Request request = std::move(requests_.extract(req).mapped());
        if (request.session) {
            hand_over(request);
            sessions_.at(*request.session).history = std::move(request.tokens);
            return end_turn(*request.session);
        }
        Record& record = *request.record;
        Pages freed = publish(record, request.tokens, std::min(record.committed, request.tokens.size()));
        append(freed, release(std::move(record)));
        return freed;
    }

    Pages retract(const Name& req) {
        Request& request = find_running(req).request;
        request.run.reset();
        request.resumed = false;
        if (!request.session) return release(*take(request.record));
        hand_over(request);
        return {};
    }

    Pages abort(const Name& req) {
        find_request(req);
        Request request = std::move(requests_.extract(req).mapped());
        auto record = take(memory_of(request));
        Pages freed;
        if (record && request.extended) freed = release(*take(record));  // the client never got the tokens of this turn
        if (request.session) {
            sessions_.at(*request.session).record = std::move(record);
            append(freed, end_turn(*request.session));
        }
        return freed;
    }

    Pages evict(Int n) {
        if (n < 1) refuse("OP-1", n, " pages are nothing to evict");
        const Pages evicted = store_.evict(n);
        append(free_pages_, evicted);
        return evicted;
    }

    // -- Sessions

    Done open_session(const Name& name) {
        const bool is_new = sessions_.emplace(name, Session{Tokens(config_.page_size)}).second;
        if (!is_new) refuse("OP-1", "session ", name, " is open already");
        return {};
    }

    Pages close_session(const Name& name) {
        Session& session = find_session(name);
        if (session.closing) refuse("OP-1", "session ", name, " is closing already");
        session.closing = true;
        return session.in_turn ? Pages() : end_turn(name);
    }

    Pages preempt(const Name& name) {
        Session& session = find_session(name);
        if (!session.record) refuse("OP-1", "session ", name, " holds nothing, or its turn has it");
        return release(*take(session.record));
    }

    // -- Looking

    Figures report(bool idle) const {
        const Int page_size = config_.page_size, locked = length(store_.locks());
        Int held[2] = {0, 0}, rows[2] = {0, 0};  // by requests, and by sessions
        const auto count = [&](bool for_session, const Record& record) {
            held[for_session] += length(record.table) * page_size - record.protected_len;
            rows[for_session] += 1;
        };
        for (const auto& [name, record] : holders(requests_)) {
            if (idle) refuse("OP-1", "request ", name, " holds memory");
            count(config_.counts_for_sessions && requests_.at(name).session, *record);
        }
        for (const auto& [name, record] : holders(sessions_)) count(true, *record);
        return {
            {"available", length(free_pages_) * page_size},
            {"evictable", (length(store_.pages()) - locked) * page_size},
            {"protected", locked * page_size},
            {"uncached", held[false]},
            {"session_held", held[true]},
            {"rows_available", length(free_rows_)},
            {"rows_requests", rows[false]},
            {"rows_sessions", rows[true]},
            {"rows_withheld", length(withheld_rows_)},
        };
    }

    Snapshot snapshot() const {
        return {store_.pages(), store_.locks(),     free_pages_,       free_rows_,
                withheld_rows_, holders(requests_), holders(sessions_)};
    }

    Int page_size() const { return config_.page_size; }

private:
    // A request that runs, and what it has then.
    struct Running {
        Request& request;
        Record& record;
        Run& run;
    };

    // -- Look-ups

    template <class Named> static auto& find(Named& all, const char* kind, const Name& name) {
        const auto found = all.find(name);
        if (found == all.end()) refuse("OP-1", "there is no ", kind, " ", name);
        return found->second;
    }

    Request& find_request(const Name& req) { return find(requests_, "request", req); }
    Session& find_session(const Name& name) { return find(sessions_, "session", name); }

    Running find_running(const Name& req) {
        Request& request = find_request(req);
        if (!request.run) refuse("OP-1", "request ", req, " does not run");
        return {request, *request.record, *request.run};
    }

    // The run for which a launch was, if it has not ended meanwhile.
    Run* find_run(const Passage& passage) {
        const auto found = requests_.find(passage.req);
        if (found == requests_.end() || !found->second.run) return nullptr;
        Run& run = *found->second.run;
        return run.number == passage.run ? &run : nullptr;
    }

    // Where the memory of a request is, if it has any: with the request, or in the slot of its session.
    std::optional<Record>& memory_of(Request& request) {
        return request.record || !request.session ? request.record : sessions_.at(*request.session).record;
    }

    // Whether a launch in flight reads a position of this row from `from` on.
    bool is_read(Int row, Int from) const {
        if (!config_.withholds_rows) return false;
        for (const Launch& launch : launches_) {
            for (const Passage& passage : launch.passages) {
                if (passage.row == row && passage.part.end > from) return true;
            }
        }
        return false;
    }

    bool is_in_flight(Int number) const {
        return std::any_of(launches_.begin(), launches_.end(), [=](const Launch& one) { return one.number == number; });
    }

    // -- Checks, which refuse

    // Refuse a part of a prefill batch, or return where it begins to write.
    Int check_prefill(const Name& req, Int seq_len) {
        Request& request = find_request(req);
        if (!request.run && !request.prefix_len) refuse("OP-1", req, " has not matched its prefix");
        if (request.run && !request.run->mid_prefill) refuse("OP-1", "the prefill of ", req, " is complete");
        if (request.run && request.run->prepared) refuse("LAUNCH-1", "the last chunk of ", req, " is not launched yet");
        const Int prefix_len = request.run ? request.run->seq_len : *request.prefix_len;
        if (!request.record) {
            const Int pages = floor_pages(prefix_len);
            if (length(store_.match(request.tokens.pages(), pages)) < pages) {
                refuse("STORE-5", "what ", req, " matched has been evicted");
            }
        } else if (!request.run && is_read(request.record->row, prefix_len)) {
            refuse("RACE-1", "a launch in flight reads what ", req, " would overwrite");
        }
        if (seq_len <= prefix_len || seq_len > request.tokens.size()) {
            refuse("OP-1", seq_len, " is not in ", prefix_len + 1, "..", request.tokens.size(), " of ", req);
        }
        if (seq_len > config_.max_context_len) refuse("LEN-1", req, " would grow past the context");
        return prefix_len;
    }

    void check_chunks(const Chunks& batch) const {
        Int continuing = 0, begun = 0, left = 0;
        for (const auto& [req, request] : requests_) left += request.run && request.run->mid_prefill;
        for (const auto& [req, seq_len] : batch) {
            const Request& request = requests_.at(req);
            const bool is_chunk = seq_len < request.tokens.size();
            continuing += request.run.has_value();
            begun += !request.run && is_chunk;
            left += is_chunk - request.run.has_value();
        }
        if (continuing > 1 || begun > 1) refuse("BATCH-1", continuing, " continuing and ", begun, " new chunks");
        if (left > 1) refuse("BATCH-2", left, " requests would be in the middle of their prefill");
    }

    void check_room(Int pages, Int rows) const {
        const Int pages_short = std::max<Int>(0, pages - length(free_pages_));
        const Int rows_short = std::max<Int>(0, rows - length(free_rows_));
        if (pages_short + rows_short > 0) throw Refusal{"CAP-1", "there is too little room", pages_short, rows_short};
    }

    static void refuse_repetition(const Batch& reqs) {
        if (reqs.empty()) refuse("OP-1", "the batch is empty");
        const std::set<Name> different(reqs.begin(), reqs.end());
        if (different.size() < reqs.size()) refuse("OP-1", "the batch has a request twice");
    }

    // -- Memory of a record

    // Give a row to a request that brings none, and lock what it has matched.
    Record& admit(Request& request) {
        const Int prefix_len = *request.prefix_len;
        Pages path = store_.match(request.tokens.pages(), floor_pages(prefix_len));
        store_.lock(path);
        request.record = Record{free_rows_.back(), std::move(path), prefix_len, prefix_len, prefix_len, prefix_len};
        free_rows_.pop_back();
        return *request.record;
    }

    // Take pages, so that the record has slots for the positions up to `end`; the new pages.
    Pages grow(Record& record, Int end) {
        Pages pages;
        while (length(record.table) < ceil_pages(end)) {
            pages.push_back(free_pages_.back());
            record.table.push_back(free_pages_.back());
            free_pages_.pop_back();
        }
        record.allocated = std::max(record.allocated, end);
        return pages;
    }

    // Give the pages back that lie behind the first `kept` positions. The page that `kept` cuts stays.
    Pages cut(Record& record, Int kept) {
        const auto first = record.table.begin() + ceil_pages(kept);
        const Pages freed(first, record.table.end());
        record.table.erase(first, record.table.end());
        append(free_pages_, freed);
        return freed;
    }

    // Give the whole pages of the first `end` positions to the store; the duplicates, which go back.
    Pages publish(Record& record, const Tokens& tokens, Int end) {
        const Int first = floor_pages(record.protected_len), last = floor_pages(end);
        if (!config_.prefix_cache || last <= first) return {};
        const Pages freed = store_.publish(tokens.pages(), first, last, record.table);
        append(free_pages_, freed);
        record.protected_len = last * config_.page_size;
        return freed;
    }

    // Give all back that a record has: its own pages, its lock, its row.
    Pages release(Record record) {
        const Pages freed = cut(record, record.protected_len);
        store_.unlock(record.table);
        withheld_rows_.push_back(record.row);
        free_unread_rows();
        return freed;
    }

    void free_unread_rows() {
        const auto unread =
            std::partition(withheld_rows_.begin(), withheld_rows_.end(), [this](Int row) { return is_read(row, 0); });
        free_rows_.insert(free_rows_.end(), unread, withheld_rows_.end());
        withheld_rows_.erase(unread, withheld_rows_.end());
    }

    // Give a turn's memory to its session. Of what is written counts as much as the client has tokens of.
    void hand_over(Request& request) {
        Record& record = *request.record;
        record.committed = std::min({record.committed, record.written, request.tokens.size()});
        sessions_.at(*request.session).record = take(request.record);
    }

    // A session has no turn any more, and is gone if it is closing.
    Pages end_turn(const Name& name) {
        Session& session = sessions_.at(name);
        session.in_turn = false;
        if (!session.closing) return {};
        const Session gone = std::move(sessions_.extract(name).mapped());
        return gone.record ? release(*gone.record) : Pages();
    }

    // Who has memory, of requests or of sessions.
    template <class Named> static Holders holders(const Named& all) {
        Holders found;
        for (const auto& [name, one] : all) {
            if (one.record) found.emplace(name, &*one.record);
        }
        return found;
    }

    // Whole pages that `tokens` tokens fill, the last one perhaps in part.
    Int ceil_pages(Int tokens) const { return (tokens + config_.page_size - 1) / config_.page_size; }
    Int floor_pages(Int tokens) const { return tokens / config_.page_size; }

    Config config_;
    Pages free_pages_;
    std::vector<Int> free_rows_;
    std::vector<Int> withheld_rows_;  // let go, and still read by a launch in flight
    PrefixStore store_;
    std::map<Name, Request> requests_;
    std::map<Name, Session> sessions_;
    std::deque<Launch> launches_;  // in flight, oldest first
    Int runs_ = 0;
};

// ---- JSON -----------------------------------------------------------------------------------------------------------

// A value that was read, or is to be written.
class Json {
public:
    using List = std::vector<Json>;
    using Object = std::vector<std::pair<std::string, Json>>;

    Json() = default;  // null
    Json(bool value) : value_(value) {}
    Json(Int number) : value_(number) {}
    Json(std::string text) : value_(std::move(text)) {}
    Json(const char* text) : value_(std::string(text)) {}
    Json(List list) : value_(std::move(list)) {}
    Json(Object object) : value_(std::move(object)) {}

    Json(const std::vector<Int>& numbers) : value_(List(numbers.begin(), numbers.end())) {}

    template <class Key, class Value> Json(const std::map<Key, Value>& map) {
        Object object;
        for (const auto& [key, value] : map) {
            if constexpr (std::is_integral_v<Key>) {
                object.emplace_back(std::to_string(key), value);
            } else {
                object.emplace_back(key, value);
            }
        }
        value_ = std::move(object);
    }

    bool is_null() const { return std::holds_alternative<std::monostate>(value_); }

    template <class T> const T* get_if() const { return std::get_if<T>(&value_); }

    // The value, which is an error where it is of another type.
    template <class T> const T& as() const { return std::get<T>(value_); }

    template <class T> T as_or(T usual) const { return is_null() ? usual : as<T>(); }

    // A part of an object; null where it is left out.
    const Json& operator[](std::string_view key) const {
        static const Json absent;
        for (const auto& [name, value] : as<Object>()) {
            if (name == key) return value;
        }
        return absent;
    }

    friend std::ostream& operator<<(std::ostream& out, const Json& json) {
        if (const auto* boolean = json.get_if<bool>()) return out << (*boolean ? "true" : "false");
        if (const auto* number = json.get_if<Int>()) return out << *number;
        if (const auto* text = json.get_if<std::string>()) return write(out, *text);
        if (const auto* list = json.get_if<List>()) {
            const char* before = "[";
            for (const Json& one : *list) out << std::exchange(before, ",") << one;
            return out << (list->empty() ? "[]" : "]");
        }
        if (const auto* object = json.get_if<Object>()) {
            const char* before = "{";
            for (const auto& [key, value] : *object) write(out << std::exchange(before, ","), key) << ':' << value;
            return out << (object->empty() ? "{}" : "}");
        }
        return out << "null";
    }

private:
    static std::ostream& write(std::ostream& out, const std::string& text) {
        out << '"';
        for (const char c : text) {
            if (c == '"' || c == '\\') {
                out << '\\' << c;
            } else if (0 <= c && c < ' ') {
                out << "\\u00" << (c < 16 ? '0' : '1') << "0123456789abcdef"[c % 16];
            } else {
                out << c;
            }
        }
        return out << '"';
    }

    std::variant<std::monostate, bool, Int, std::string, List, Object> value_;
};

// Reads the value of one line. Numbers are whole: kvspec sends no others.
class JsonReader {
public:
    static Json read(std::string_view line) {
        JsonReader reader(line);
        Json json = reader.value();
        reader.skip_spaces();
        if (!reader.rest_.empty()) reader.fail("the end of the line");
        return json;
    }

private:
    explicit JsonReader(std::string_view line) : rest_(line) {}

    [[noreturn]] void fail(const char* expected) const {
        throw std::runtime_error("expected " + std::string(expected) + " before: " + std::string(rest_.substr(0, 40)));
    }

    void skip_spaces() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size())); }

    bool accept(std::string_view word) {
        skip_spaces();
        if (rest_.substr(0, word.size()) != word) return false;
        rest_.remove_prefix(word.size());
        return true;
    }

    void expect(const char* word) {
        if (!accept(word)) fail(word);
    }

    // Read what stands between commas.
    template <class Read> void until(const char* end, const Read& read) {
        if (accept(end)) return;
        do {
            read();
        } while (accept(","));
        expect(end);
    }

    Json value() {
        if (accept("{")) {
            Json::Object object;
            until("}", [&] {
                expect("\"");
                std::string key = string();
                expect(":");
                object.emplace_back(std::move(key), value());
            });
            return object;
        }
        if (accept("[")) {
            Json::List list;
            until("]", [&] { list.push_back(value()); });
            return list;
        }
        if (accept("\"")) return string();
        if (accept("null")) return {};
        if (accept("true")) return true;
        if (accept("false")) return false;
        return number(rest_, 10);
    }

    // The rest of a string whose first quotation mark has been read. kvspec writes UTF-8 and escapes what it must.
    std::string string() {
        std::string text;
        for (;;) {
            const char c = next();
            if (c == '"') return text;
            if (c != '\\') {
                text += c;
                continue;
            }
            const char escape = next();
            const auto simple = std::string_view("\"\\/bfnrt").find(escape);
            if (simple != std::string_view::npos) {
                text += "\"\\/\b\f\n\r\t"[simple];
            } else {
                if (escape != 'u' || rest_.substr(0, 2) != "00") fail("the escape of a control character");
                text += static_cast<char>(number(rest_.substr(0, 4), 16));
            }
        }
    }

    char next() {
        if (rest_.empty()) fail("the end of a string");
        const char c = rest_.front();
        rest_.remove_prefix(1);
        return c;
    }

    // The number with which `digits` begins, and so the rest.
    Int number(std::string_view digits, int base) {
        Int number = 0;
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
        if (error != std::errc()) fail("a number");
        rest_.remove_prefix(end - digits.data());
        return number;
    }

    std::string_view rest_;
};

// ---- Lines ----------------------------------------------------------------------------------------------------------

const char HELLO[] = R"({"kvspec": 2, "name": "node.cpp", "version": "1", "reset": true,)"
                     R"( "unsupported": ["sliding_window", "recurrent_states"],)"
                     R"( "policies": {"rows_read": ["until_complete", "at_launch", "in_order"],)"
                     R"( "first_turn_chunks": ["private", "published"], "turns_count_as": ["requests", "sessions"]}})";

Config config_of(const Json& json) {
    const auto policy = [&](const char* name) { return json[name].as_or<std::string>(""); };
    Config config;
    config.page_size = json["page_size"].as<Int>();
    config.num_pages = json["num_pages"].as<Int>();
    config.num_rows = json["num_rows"].as<Int>();
    config.max_context_len = json["max_context_len"].as<Int>();
    config.prefix_cache = json["prefix_cache"].as_or(true);
    config.withholds_rows = policy("rows_read") != "at_launch" && policy("rows_read") != "in_order";
    config.publishes_chunks = policy("first_turn_chunks") == "published";
    config.counts_for_sessions = policy("turns_count_as") == "sessions";
    return config;
}

// The elements of a list, each as `read` reads it.
template <class Read> auto each(const Json& list, const Read& read) {
    std::vector<decltype(read(list))> elements;
    for (const Json& one : list.as<Json::List>()) elements.push_back(read(one));
    return elements;
}

Token token(const Json& json) {
    if (const auto* key = json.get_if<Key>()) return *key;
    return json.as<Int>();
}

std::pair<Name, Int> chunk(const Json& json) {
    const auto& pair = json.as<Json::List>();
    return {pair.at(0).as<Name>(), pair.at(1).as<Int>()};
}

Name name(const Json& json) { return json.as<Name>(); }
Int number(const Json& json) { return json.as<Int>(); }

std::map<Name, Int> numbers(const Json& json) {
    std::map<Name, Int> numbers;
    for (const auto& [name, value] : json.as_or(Json::Object())) numbers.emplace(name, value.as<Int>());
    return numbers;
}

// Each holder's row and lengths.
Json lengths(const Holders& holders) {
    Json::Object object;
    for (const auto& [name, record] : holders) {
        object.emplace_back(name, Json::Object{{"row", record->row},
                                               {"protected_len", record->protected_len},
                                               {"committed_len", record->committed},
                                               {"allocated_len", record->allocated}});
    }
    return object;
}

// The slot of each allocated position of each row, as a run for each page.
Json slots(const Snapshot& snapshot, Int page_size) {
    Json::Object rows;
    for (const Holders* holders : {&snapshot.requests, &snapshot.sessions}) {
        for (const auto& [name, record] : *holders) {
            Json::List runs;
            Int left = record->allocated;
            for (const Page page : record->table) {
                runs.push_back(Json(Ids{page * page_size, std::min(left, page_size)}));
                left -= page_size;
            }
            rows.emplace_back(std::to_string(record->row), std::move(runs));
        }
    }
    return rows;
}

Json::Object observed(Done) { return {}; }
Json::Object observed(const Pages& freed) { return {{"freed", freed}}; }
Json::Object observed(const std::map<Name, Pages>& pages) { return {{"pages", pages}}; }
Json::Object observed(const Extended& extended) { return {{"rows", extended.rows}, {"pages", extended.pages}}; }
Json::Object observed(const Figures& figures) { return {figures.begin(), figures.end()}; }

Json::Object observed(const Match& match) {
    return {{"prefix_len", match.prefix_len}, {"protected_len", match.protected_len}, {"freed", match.freed}};
}

Json::Object observed(const Publication& publication) {
    return {{"protected_len", publication.protected_len}, {"freed", publication.freed}};
}

Json::Object observed(const Snapshot& snapshot, Int page_size) {
    return {{"rows", slots(snapshot, page_size)},      {"free_rows", snapshot.free_rows},
            {"withheld_rows", snapshot.withheld_rows}, {"free_pages", snapshot.free_pages},
            {"store_pages", snapshot.store_pages},     {"locks", snapshot.locks},
            {"requests", lengths(snapshot.requests)},  {"sessions", lengths(snapshot.sessions)}};
}

// Carry an operation out, and say what was done.
Json::Object carry_out(Manager& manager, const Json& op) {
    const auto kind = op["op"].as<std::string>();
    const auto req = op["req"].as_or(Name()), session = op["session"].as_or(Name());
    if (kind == "open_session") return observed(manager.open_session(session));
    if (kind == "close_session") return observed(manager.close_session(session));
    if (kind == "preempt") return observed(manager.preempt(session));
    if (kind == "submit") {
        return observed(manager.submit(req, each(op["tokens"], token), op["session"].get_if<Name>()));
    }
    if (kind == "match_prefix") return observed(manager.match_prefix(req));
    if (kind == "extend") return observed(manager.extend(each(op["reqs"], chunk)));
    if (kind == "decode") return observed(manager.decode(each(op["reqs"], name), op["n"].as_or<Int>(1)));
    if (kind == "launch") return observed(manager.launch(number(op["launch"]), each(op["reqs"], name)));
    if (kind == "complete") return observed(manager.complete(number(op["launch"]), numbers(op["tokens"])));
    if (kind == "verify") return observed(manager.verify(req, number(op["accepted"]), each(op["tokens"], number)));
    if (kind == "cache_unfinished") return observed(manager.cache_unfinished(req, op["chunked"].as_or(false)));
    if (kind == "finish") return observed(manager.finish(req));
    if (kind == "retract") return observed(manager.retract(req));
    if (kind == "abort") return observed(manager.abort(req));
    if (kind == "evict") {
        if (op["window"].as_or<Int>(0) != 0 || op["states"].as_or<Int>(0) != 0) refuse("OP-1", "there is no such pool");
        return {{"evicted", manager.evict(number(op["n"]))}};
    }
    if (kind == "report") return observed(manager.report(op["mode"].as_or<std::string>("busy") == "idle"));
    if (kind == "snapshot") return observed(manager.snapshot(), manager.page_size());
    refuse("OP-1", "there is no operation ", kind);
}

// The answer to an operation.
Json answer(Manager& manager, const Json& op) {
    Json::Object answer{{"op", op["op"]}};
    try {
        answer.emplace_back("obs", carry_out(manager, op));
    } catch (const Refusal& refusal) {
        answer.emplace_back("refused", Json::Object{{"rule", refusal.rule},
                                                    {"reason", refusal.reason},
                                                    {"pages_short", refusal.pages_short},
                                                    {"rows_short", refusal.rows_short}});
    }
    return answer;
}

}  // namespace

int main() try {
    std::ios::sync_with_stdio(false);
    std::cout << HELLO << std::endl;
    std::optional<Manager> manager;
    for (std::string line; std::getline(std::cin, line);) {
        const Json read = JsonReader::read(line);
        if (read["op"].is_null()) {
            manager.emplace(config_of(read["config"]));
        } else if (manager) {
            std::cout << answer(*manager, read) << std::endl;
        } else {
            throw std::runtime_error("an operation comes before a header");
        }
    }
} catch (const std::exception& error) {
    std::cerr << "node: " << error.what() << '\n';
    return 1;
}
