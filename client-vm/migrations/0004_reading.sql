-- What is read and what is answered: plaintexts, replies, drafts, the keys of sources.

DROP VIEW item_content;
DROP VIEW visible_item;
DROP VIEW visible_source;
DROP VIEW effective_act;

-- The outbox takes replies: rows about an item that has no place in its conversation before the server gives it one.
CREATE TABLE outbox_of_now (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    -- The rows of one act share it: the id of its first row.
    act           INTEGER NOT NULL,
    journalist_id TEXT NOT NULL,
    kind          TEXT NOT NULL CHECK (kind IN ('star', 'unstar', 'seen', 'delete_source', 'delete_item', 'reply')),
    source_id     TEXT NOT NULL,
    item_id       TEXT,
    item_kind     TEXT CHECK (item_kind IN ('message', 'file', 'reply')),
    item_order    INTEGER,
    state         TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'attempted', 'confirmed', 'refused')),
    created_us    INTEGER NOT NULL,
    attempts      INTEGER NOT NULL DEFAULT 0,
    -- The next try is due `wait_us` after `wait_from_us`, and also when the clock shows a time before that.
    wait_from_us  INTEGER,
    wait_us       INTEGER,
    -- Goes on only when the user says so.
    held          INTEGER NOT NULL DEFAULT 0,
    reason        TEXT,
    -- Of a refused row: an attempt before the refusal may have had an effect.
    sent          INTEGER NOT NULL DEFAULT 0,
    -- The last snapshot that had been asked for when the row was last attempted or was confirmed; of a reply, when its
    -- last attempt ended.
    snapshot      INTEGER NOT NULL DEFAULT 0,
    -- A reply is being sent: no snapshot can tell what becomes of it.
    in_flight     INTEGER NOT NULL DEFAULT 0,
    confirmed_us  INTEGER,
    -- In how many snapshots asked for after the confirmation a deleted object was listed.
    listed        INTEGER NOT NULL DEFAULT 0,
    -- That it was not deleted has been told.
    not_deleted   INTEGER NOT NULL DEFAULT 0,
    -- What a reply says.
    text          TEXT,
    CHECK ((kind IN ('seen', 'delete_item', 'reply')) = (item_id IS NOT NULL)),
    CHECK ((item_id IS NULL) = (item_kind IS NULL)),
    CHECK ((item_order IS NULL) = (item_id IS NULL) OR kind = 'reply'),
    CHECK ((kind = 'reply') = (text IS NOT NULL))
) STRICT;
INSERT INTO outbox_of_now (id, act, journalist_id, kind, source_id, item_id, item_kind, item_order, state, created_us,
    attempts, wait_from_us, wait_us, held, reason, sent, snapshot, confirmed_us, listed, not_deleted)
SELECT id, act, journalist_id, kind, source_id, item_id, item_kind, item_order, state, created_us,
    attempts, wait_from_us, wait_us, held, reason, sent, snapshot, confirmed_us, listed, not_deleted
FROM outbox;
-- Numbers that were used are not used again.
INSERT INTO sqlite_sequence (name, seq) SELECT 'outbox_of_now', 0
WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'outbox_of_now');
UPDATE sqlite_sequence SET seq = coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox'), 0)
WHERE name = 'outbox_of_now';
DROP TABLE outbox;
ALTER TABLE outbox_of_now RENAME TO outbox;
CREATE INDEX outbox_source ON outbox (source_id);
CREATE INDEX outbox_item ON outbox (item_id) WHERE item_id IS NOT NULL;
CREATE INDEX outbox_act ON outbox (act);

-- Items are decrypted.
--
-- absent      nothing, or part of it
-- downloaded  its ciphertext, verified; it is to be decrypted
-- failed      nothing, and it will not be fetched again by itself
-- decrypted   its plaintext: a text here, or a file under `plaintext`
-- sealed      its ciphertext, which could not be decrypted; it will not be tried again by itself
CREATE TABLE local_item_of_now (
    -- Names its files.
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    item_id      TEXT NOT NULL,
    is_reply     INTEGER NOT NULL,
    state        TEXT NOT NULL DEFAULT 'absent'
                 CHECK (state IN ('absent', 'downloaded', 'failed', 'decrypted', 'sealed')),
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
    -- Why it is sealed.
    seal         TEXT CHECK (seal IN ('no_key', 'denied', 'cut', 'corrupt', 'too_large', 'other')),
    -- Its plaintext was an OpenPGP message itself, which was decrypted too, or could not be.
    inner        TEXT CHECK (inner IN ('opened', 'closed')),
    -- The length of the plaintext, in bytes.
    plain_bytes  INTEGER,
    -- Under what name its source packed a file, made clean.
    name         TEXT,
    -- What a message or reply says.
    text         TEXT,
    UNIQUE (item_id, is_reply),
    CHECK ((state = 'sealed') = (seal IS NOT NULL)),
    CHECK ((state = 'decrypted') = (plain_bytes IS NOT NULL))
) STRICT;
INSERT INTO local_item_of_now (id, item_id, is_reply, state, wanted_us, sha256, size_bytes, mismatches, attempts,
    wait_from_us, wait_us, reason)
SELECT id, item_id, is_reply, state, wanted_us, sha256, size_bytes, mismatches, attempts, wait_from_us, wait_us, reason
FROM local_item;
INSERT INTO sqlite_sequence (name, seq) SELECT 'local_item_of_now', 0
WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'local_item_of_now');
UPDATE sqlite_sequence SET seq = coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'local_item'), 0)
WHERE name = 'local_item_of_now';
DROP TABLE local_item;
ALTER TABLE local_item_of_now RENAME TO local_item;

-- What a journalist has begun to write to a source.
CREATE TABLE local_draft (
    journalist_id TEXT NOT NULL,
    source_id     TEXT NOT NULL,
    text          TEXT NOT NULL,
    written_us    INTEGER NOT NULL,
    PRIMARY KEY (journalist_id, source_id)
) STRICT, WITHOUT ROWID;

-- The key that replies to a source are encrypted to, pinned at first sight, and what became of the one that the server
-- offers now.
CREATE TABLE local_key (
    source_id   TEXT PRIMARY KEY NOT NULL,
    -- The pinned key; none where the first one offered was no good.
    fingerprint TEXT,
    armored     TEXT,
    -- What was last offered, as it was looked at: the key, the fingerprint that the server claimed of it, and the one that
    -- it says itself.
    offered_armored     TEXT NOT NULL,
    offered_claim       TEXT NOT NULL,
    offered_fingerprint TEXT NOT NULL,
    -- Whether that is still what is offered.
    looked_at           INTEGER NOT NULL DEFAULT 1,
    -- Why replies are held back; none while the pinned key is what is offered.
    problem     TEXT CHECK (problem IN ('changed', 'mismatch', 'unusable')),
    -- The problem in words.
    detail      TEXT,
    CHECK ((fingerprint IS NULL) = (armored IS NULL)),
    CHECK (problem IS NOT NULL OR fingerprint IS NOT NULL)
) STRICT, WITHOUT ROWID;

-- The secret keys that were there when messages were last tried: with others, what found none is tried again.
ALTER TABLE local_queue ADD COLUMN secret_keys TEXT NOT NULL DEFAULT '';

-- The acts that shape what is seen: what the server has confirmed to anybody, and what whoever signed in last has done
-- besides. Acts of others that are not confirmed show in their own views only.
CREATE VIEW effective_act AS
SELECT * FROM outbox
WHERE state = 'confirmed'
   OR (state IN ('pending', 'attempted') AND journalist_id = (SELECT journalist_id FROM local_journalist));

-- What is seen: the readable sources whose deletion is not confirmed, and the readable items of those. (The sets after IN
-- do not depend on the row, so each is made once a query.)
CREATE VIEW visible_source AS
SELECT s.id, s.designation,
       coalesce(
           -- What is still to be sent comes after everything that was confirmed.
           (SELECT a.kind = 'star' FROM effective_act AS a
            WHERE a.source_id = s.id AND a.kind IN ('star', 'unstar')
            ORDER BY a.state = 'confirmed', a.id DESC LIMIT 1),
           s.starred
       ) AS starred,
       s.last_updated_us, s.key_fingerprint,
       s.id IN (SELECT source_id FROM effective_act WHERE kind = 'delete_source') AS being_deleted
FROM server_source AS s
WHERE s.designation IS NOT NULL
  AND s.id NOT IN (SELECT source_id FROM outbox WHERE kind = 'delete_source' AND state = 'confirmed');

-- A submission and a reply may share an id.
CREATE VIEW visible_item AS
WITH item AS (
    SELECT id, source_id, kind, item_order, filename, size_bytes, NULL AS author_id, 0 AS is_reply,
           EXISTS (
               SELECT 1 FROM server_submission_seen AS m JOIN local_journalist AS l ON l.journalist_id = m.journalist_id
               WHERE m.submission_id = id
           ) AS seen
    FROM server_submission
    UNION ALL
    SELECT id, source_id, 'reply', item_order, filename, size_bytes, author_id, 1,
           EXISTS (
               SELECT 1 FROM server_reply_seen AS m JOIN local_journalist AS l ON l.journalist_id = m.journalist_id
               WHERE m.reply_id = id
           )
    FROM server_reply
)
SELECT i.id, i.source_id, i.kind, i.item_order, i.filename, i.size_bytes, i.author_id,
       NOT (i.seen OR (i.is_reply, i.id) IN (
           SELECT item_kind = 'reply', item_id FROM effective_act
           WHERE kind = 'seen' AND journalist_id = (SELECT journalist_id FROM local_journalist)
       )) AS unread,
       i.source_id IN (SELECT source_id FROM effective_act WHERE kind = 'delete_source')
           OR (i.is_reply, i.id) IN (
               SELECT item_kind = 'reply', item_id FROM effective_act WHERE kind = 'delete_item'
           ) AS being_deleted
FROM item AS i
WHERE i.source_id IN (SELECT id FROM visible_source)
  AND (i.is_reply, i.id) NOT IN (
      SELECT item_kind = 'reply', item_id FROM outbox WHERE kind = 'delete_item' AND state = 'confirmed'
  );

-- The items that are seen, with what is and what is to be held of them.
CREATE VIEW item_content AS
SELECT i.*, l.id AS number,
       coalesce(l.state, 'absent') AS state, l.wanted_us, l.sha256, l.wait_from_us, l.wait_us, l.reason,
       l.seal, l.inner, l.plain_bytes, l.name, l.text,
       l.wanted_us IS NOT NULL OR (i.kind <> 'file' AND q.fetch_messages) AS wanted
FROM visible_item AS i
LEFT JOIN local_item AS l ON l.item_id = i.id AND l.is_reply = (i.kind = 'reply')
CROSS JOIN local_queue AS q;
