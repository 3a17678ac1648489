-- The mirror: what the proxy sent, record by record. `digest` is the SHA-256 of the record, or of its unreadable mark, as
-- sent. A record that could never be read has its columns null; one that became unreadable keeps what it had, with the
-- field that could not be read in `unreadable`.

CREATE TABLE server_journalist (
    id         TEXT PRIMARY KEY NOT NULL,
    digest     BLOB NOT NULL,
    unreadable TEXT,
    username   TEXT,
    first_name TEXT,
    last_name  TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE server_source (
    id              TEXT PRIMARY KEY NOT NULL,
    digest          BLOB NOT NULL,
    unreadable      TEXT,
    designation     TEXT,
    starred         INTEGER,
    last_updated_us INTEGER,
    interactions    INTEGER,
    key_armored     TEXT,
    key_fingerprint TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE server_submission (
    id         TEXT PRIMARY KEY NOT NULL,
    digest     BLOB NOT NULL,
    unreadable TEXT,
    source_id  TEXT,
    kind       TEXT CHECK (kind IN ('message', 'file')),
    item_order INTEGER,
    filename   TEXT,
    size_bytes INTEGER,
    read       INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX server_submission_source ON server_submission (source_id);

CREATE TABLE server_reply (
    id                TEXT PRIMARY KEY NOT NULL,
    digest            BLOB NOT NULL,
    unreadable        TEXT,
    source_id         TEXT,
    author_id         TEXT,
    item_order        INTEGER,
    filename          TEXT,
    size_bytes        INTEGER,
    deleted_by_source INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX server_reply_source ON server_reply (source_id);

-- Who has seen what. Submissions and replies have ids of their own, so each has its marks.
CREATE TABLE server_submission_seen (
    submission_id TEXT NOT NULL REFERENCES server_submission (id) ON DELETE CASCADE,
    journalist_id TEXT NOT NULL,
    PRIMARY KEY (submission_id, journalist_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE server_reply_seen (
    reply_id      TEXT NOT NULL REFERENCES server_reply (id) ON DELETE CASCADE,
    journalist_id TEXT NOT NULL,
    PRIMARY KEY (reply_id, journalist_id)
) STRICT, WITHOUT ROWID;

-- Local facts: who signed in last. Their seen marks decide what is unread while nobody is signed in.
CREATE TABLE local_journalist (
    only          INTEGER PRIMARY KEY CHECK (only = 1),
    journalist_id TEXT NOT NULL,
    username      TEXT NOT NULL
) STRICT;

-- The last sync that ended, as the control protocol encodes its report, and what outlives it.
CREATE TABLE sync_state (
    only             INTEGER PRIMARY KEY CHECK (only = 1),
    report           BLOB,
    last_success_us  INTEGER,
    -- Records that could not be read when they were last listed, and since when there is one.
    unreadable       INTEGER NOT NULL DEFAULT 0,
    unreadable_since_us INTEGER
) STRICT;
INSERT INTO sync_state (only) VALUES (1);

-- What is seen: the readable sources, and the readable items of those. A source is readable once its designation is known.
CREATE VIEW visible_source AS
SELECT id, designation, starred, last_updated_us, key_fingerprint
FROM server_source
WHERE designation IS NOT NULL;

CREATE VIEW visible_item AS
SELECT s.id, s.source_id, s.kind, s.item_order, s.filename, s.size_bytes, NULL AS author_id,
       NOT EXISTS (
           SELECT 1 FROM server_submission_seen AS m JOIN local_journalist AS l ON l.journalist_id = m.journalist_id
           WHERE m.submission_id = s.id
       ) AS unread
FROM server_submission AS s
WHERE s.source_id IN (SELECT id FROM visible_source)
UNION ALL
SELECT r.id, r.source_id, 'reply', r.item_order, r.filename, r.size_bytes, r.author_id,
       NOT EXISTS (
           SELECT 1 FROM server_reply_seen AS m JOIN local_journalist AS l ON l.journalist_id = m.journalist_id
           WHERE m.reply_id = r.id
       )
FROM server_reply AS r
WHERE r.source_id IN (SELECT id FROM visible_source);
