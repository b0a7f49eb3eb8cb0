/*
The scope of benchmarks/explore.py as a Promela model: N plain requests that come at any moment, are prefilled in any
batches, decoded together, launched and completed one launch at a time, retracted, aborted and finished.

What it covers: each request's phase, its lengths (tokens, committed, allocated, written, promised), what is prepared and
in flight, withheld rows, and the numbers of free pages and rows. It has no page numbers, prefix store, sessions, chunks
or content: kvspec explores all of those with the same code in every scope, here it only has nothing to say about them.
Its states are in one-to-one correspondence with kvspec's: every variable is 0 where it means nothing.
*/

#define CEIL(length) (((length) + P - 1) / P)
#define LEFT(r) (prompt[r] + OUTPUTS - tokens[r])
#define READY(r) (here[r] && !running[r] && matched[r])
#define ABLE(r) (running[r] && !prepared[r] && committed[r] < promised[r] && LEFT(r) > 0)
#define GROWTH(r) (CEIL(committed[r] + 1) - CEIL(allocated[r]))
#define MORE(r) (ABLE(r) && GROWTH(r) > 0 -> GROWTH(r) : 0)
#define FREE_PAGES (PAGES - CEIL(allocated[0]) - CEIL(allocated[1]) - CEIL(allocated[2]))
#define FREE_ROWS (ROWS - running[0] - running[1] - running[2] - withheld[0] - withheld[1] - withheld[2])
#define FLIGHT (reads[0] + reads[1] + reads[2] > 0)
#define FITS(r) (reads[r] == 0 || withheld[r] || LEFT(r) > 0)

byte prompt[3];
bit came[3], here[3], matched[3], running[3], ran[3], prepared[3], withheld[3];
byte tokens[3], committed[3], allocated[3], written[3], promised[3], extended[3];
byte reads[3]; /* positions that the launch in flight reads of the row; 0 if it has no part in it */

inline check() {
    assert(FREE_PAGES >= 0 && FREE_ROWS >= 0);
    assert(committed[0] <= allocated[0] && committed[1] <= allocated[1] && committed[2] <= allocated[2]);
    assert(written[0] <= allocated[0] && written[1] <= allocated[1] && written[2] <= allocated[2])
}

inline release(r) {
    if
    :: reads[r] > 0 && !withheld[r] && running[r] -> withheld[r] = 1
    :: else
    fi;
    running[r] = 0; matched[r] = 0; prepared[r] = 0;
    committed[r] = 0; allocated[r] = 0; written[r] = 0; promised[r] = 0; extended[r] = 0
}

inline leave(r) {
    release(r);
    here[r] = 0; ran[r] = 0; tokens[r] = 0
}

inline begin(r) {
    running[r] = 1; matched[r] = 0; ran[r] = 1; prepared[r] = 1;
    committed[r] = tokens[r]; allocated[r] = tokens[r]; promised[r] = tokens[r]; extended[r] = tokens[r]
}

inline step(r) {
    if
    :: ABLE(r) ->
        committed[r] = committed[r] + 1;
        allocated[r] = (allocated[r] < committed[r] -> committed[r] : allocated[r]);
        prepared[r] = 1
    :: else
    fi
}

inline hand_over(r) {
    if
    :: prepared[r] -> prepared[r] = 0; reads[r] = committed[r]; written[r] = committed[r]; promised[r] = promised[r] + 1
    :: else
    fi
}

inline bring(r) {
    if
    :: reads[r] > 0 && !withheld[r] -> tokens[r] = tokens[r] + 1
    :: else
    fi;
    reads[r] = 0; withheld[r] = 0
}

#define REQUEST(r) \
    :: d_step { !came[r] -> came[r] = 1; here[r] = 1; tokens[r] = prompt[r]; check() } \
    :: d_step { here[r] -> leave(r); check() } \
    :: d_step { here[r] && !running[r] -> matched[r] = 1 } \
    :: d_step { READY(r) && CEIL(tokens[r]) <= FREE_PAGES && FREE_ROWS >= 1 -> begin(r); check() } \
    :: d_step { running[r] && !prepared[r] && LEFT(r) <= 0 -> leave(r); check() } \
    :: d_step { running[r] && LEFT(r) > 0 -> release(r); check() }

#define PAIR(r, q) \
    :: d_step { READY(r) && READY(q) && CEIL(tokens[r]) + CEIL(tokens[q]) <= FREE_PAGES && FREE_ROWS >= 2 -> \
        begin(r); begin(q); check() }

active proctype system() {
    d_step { prompt[0] = PROMPT0; prompt[1] = PROMPT1; prompt[2] = PROMPT2 };
end:
    do
    REQUEST(0)
    REQUEST(1)
    REQUEST(2)
    PAIR(0, 1)
    PAIR(0, 2)
    PAIR(1, 2)
    :: d_step { (ABLE(0) || ABLE(1) || ABLE(2)) && MORE(0) + MORE(1) + MORE(2) <= FREE_PAGES ->
        step(0); step(1); step(2); check() }
    :: d_step { (prepared[0] || prepared[1] || prepared[2]) && !FLIGHT ->
        hand_over(0); hand_over(1); hand_over(2); check() }
    :: d_step { FLIGHT && FITS(0) && FITS(1) && FITS(2) -> bring(0); bring(1); bring(2); check() }
    od
}
