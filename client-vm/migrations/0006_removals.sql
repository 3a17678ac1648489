-- What the server does not list any more, though nobody here has deleted it. Few removals are taken as they come; more than
-- that in a day are held: hidden, and kept until somebody says what is to become of them.

DROP VIEW item_content;
DROP VIEW visible_item;
DROP VIEW visible_source;

-- `kept`, and shown as no longer on the server: 1, somebody has rejected the removal; 2, it is there only for replies that
-- were not sent to it, or for what was written since.
CREATE TABLE local_removed_source (
    id              TEXT PRIMARY KEY NOT NULL,
    designation     TEXT NOT NULL,
    starred         INTEGER NOT NULL,
    last_updated_us INTEGER NOT NULL,
    key_fingerprint TEXT,
    removed_us      INTEGER NOT NULL,
    kept            INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- Items that are not listed any more, of sources that are listed or held, or kept since their removal was rejected.
CREATE TABLE local_removed_item (
    id         TEXT NOT NULL,
    is_reply   INTEGER NOT NULL,
    source_id  TEXT NOT NULL,
    kind       TEXT NOT NULL CHECK (kind IN ('message', 'file', 'reply')),
    item_order INTEGER NOT NULL,
    filename   TEXT,
    size_bytes INTEGER NOT NULL,
    author_id  TEXT,
    removed_us INTEGER NOT NULL,
    kept       INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (id, is_reply)
) STRICT, WITHOUT ROWID;
CREATE INDEX local_removed_item_source ON local_removed_item (source_id);

-- How many removals that nobody here had asked for were taken, and when.
CREATE TABLE local_removal (
    at_us   INTEGER NOT NULL,
    objects INTEGER NOT NULL
) STRICT;

-- The fewest sources that were shown in an hour, by hours since 1970: what came within a day raises no bound.
CREATE TABLE local_shown (
    hour    INTEGER PRIMARY KEY,
    sources INTEGER NOT NULL
) STRICT;

-- Whether unused parts of pages may hold copies of what was deleted: until all of them were written anew.
CREATE TABLE local_pages (
    only  INTEGER PRIMARY KEY CHECK (only = 1),
    dirty INTEGER NOT NULL DEFAULT 1
) STRICT;
INSERT INTO local_pages (only) VALUES (1);
CREATE TRIGGER item_leaves_pages AFTER DELETE ON local_item WHEN old.text IS NOT NULL OR old.name IS NOT NULL
BEGIN UPDATE local_pages SET dirty = 1 WHERE NOT dirty; END;
CREATE TRIGGER text_leaves_pages AFTER UPDATE OF text, name ON local_item
WHEN old.text IS NOT new.text AND old.text IS NOT NULL OR old.name IS NOT new.name AND old.name IS NOT NULL
BEGIN UPDATE local_pages SET dirty = 1 WHERE NOT dirty; END;
CREATE TRIGGER reply_leaves_pages AFTER DELETE ON outbox WHEN old.text IS NOT NULL
BEGIN UPDATE local_pages SET dirty = 1 WHERE NOT dirty; END;
CREATE TRIGGER draft_leaves_pages AFTER DELETE ON local_draft
BEGIN UPDATE local_pages SET dirty = 1 WHERE NOT dirty; END;
CREATE TRIGGER source_leaves_pages AFTER DELETE ON server_source WHEN old.designation IS NOT NULL
BEGIN UPDATE local_pages SET dirty = 1 WHERE NOT dirty; END;
CREATE TRIGGER designation_leaves_pages AFTER UPDATE OF designation ON server_source
WHEN old.designation IS NOT NULL AND new.designation IS NULL
BEGIN UPDATE local_pages SET dirty = 1 WHERE NOT dirty; END;

-- Sources of which something is to stay: those that are listed, held or kept.
CREATE VIEW known_source AS
SELECT id FROM server_source UNION SELECT id FROM local_removed_source;

-- What is seen: the readable sources whose deletion is not confirmed, and the readable items of those; `gone` is what is
-- kept though the server does not list it. (The sets after IN do not depend on the row, so each is made once a query.)
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
       s.id IN (SELECT source_id FROM effective_act WHERE kind = 'delete_source') AS being_deleted,
       0 AS gone
FROM server_source AS s
WHERE s.designation IS NOT NULL
  AND s.id NOT IN (SELECT source_id FROM outbox WHERE kind = 'delete_source' AND state = 'confirmed')
UNION ALL
SELECT r.id, r.designation, r.starred, r.last_updated_us, r.key_fingerprint,
       r.id IN (SELECT source_id FROM effective_act WHERE kind = 'delete_source'), 1
FROM local_removed_source AS r
WHERE r.kept;

-- A submission and a reply may share an id.
CREATE VIEW visible_item AS
WITH item AS (
    SELECT id, source_id, kind, item_order, filename, size_bytes, NULL AS author_id, 0 AS is_reply, 0 AS gone,
           EXISTS (
               SELECT 1 FROM server_submission_seen AS m JOIN local_journalist AS l ON l.journalist_id = m.journalist_id
               WHERE m.submission_id = id
           ) AS seen
    FROM server_submission
    UNION ALL
    SELECT id, source_id, 'reply', item_order, filename, size_bytes, author_id, 1, 0,
           EXISTS (
               SELECT 1 FROM server_reply_seen AS m JOIN local_journalist AS l ON l.journalist_id = m.journalist_id
               WHERE m.reply_id = id
           )
    FROM server_reply
    UNION ALL
    -- The server takes no marks of it any more.
    SELECT id, source_id, kind, item_order, filename, size_bytes, author_id, is_reply, 1, 1
    FROM local_removed_item
    WHERE kept
)
SELECT i.id, i.source_id, i.kind, i.item_order, i.filename, i.size_bytes, i.author_id,
       NOT (i.seen OR i.source_id NOT IN (SELECT id FROM server_source) OR (i.is_reply, i.id) IN (
           SELECT item_kind = 'reply', item_id FROM effective_act
           WHERE kind = 'seen' AND journalist_id = (SELECT journalist_id FROM local_journalist)
       )) AS unread,
       i.source_id IN (SELECT source_id FROM effective_act WHERE kind = 'delete_source')
           OR (i.is_reply, i.id) IN (
               SELECT item_kind = 'reply', item_id FROM effective_act WHERE kind = 'delete_item'
           ) AS being_deleted,
       i.gone OR i.source_id NOT IN (SELECT id FROM server_source) AS gone
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
       NOT i.gone AND (l.wanted_us IS NOT NULL OR (i.kind <> 'file' AND q.fetch_messages)) AS wanted
FROM visible_item AS i
LEFT JOIN local_item AS l ON l.item_id = i.id AND l.is_reply = (i.kind = 'reply')
CROSS JOIN local_queue AS q;
