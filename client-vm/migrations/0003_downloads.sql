-- Local facts about items: what is held of their content. Absent is also an item without a row.
--
-- absent      nothing, or part of it
-- downloaded  its ciphertext, verified
-- failed      it will not be tried again by itself

CREATE TABLE local_item (
    -- Names its files.
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    item_id      TEXT NOT NULL,
    is_reply     INTEGER NOT NULL,
    state        TEXT NOT NULL DEFAULT 'absent' CHECK (state IN ('absent', 'downloaded', 'failed')),
    -- When the user asked for it; files are fetched only then.
    wanted_us    INTEGER,
    -- The SHA-256 that the server claims of it. A part without one is of no use.
    sha256       BLOB,
    -- The length of the verified ciphertext.
    size_bytes   INTEGER,
    -- How often what came in full was not what had been claimed.
    mismatches   INTEGER NOT NULL DEFAULT 0,
    attempts     INTEGER NOT NULL DEFAULT 0,
    wait_from_us INTEGER,
    wait_us      INTEGER,
    reason       TEXT,
    UNIQUE (item_id, is_reply)
) STRICT;

-- What the user has said of the queue as a whole, and whether messages and replies are fetched by themselves, as the
-- configuration says.
CREATE TABLE local_queue (
    only           INTEGER PRIMARY KEY CHECK (only = 1),
    paused         INTEGER NOT NULL DEFAULT 0,
    fetch_messages INTEGER NOT NULL DEFAULT 1
) STRICT;
INSERT INTO local_queue (only) VALUES (1);

-- The items that are seen, with what is and what is to be held of them.
CREATE VIEW item_content AS
SELECT i.*, l.id AS number,
       coalesce(l.state, 'absent') AS state, l.wanted_us, l.sha256, l.wait_from_us, l.wait_us, l.reason,
       l.wanted_us IS NOT NULL OR (i.kind <> 'file' AND q.fetch_messages) AS wanted
FROM visible_item AS i
LEFT JOIN local_item AS l ON l.item_id = i.id AND l.is_reply = (i.kind = 'reply')
CROSS JOIN local_queue AS q;
