-- The outbox: what journalists want, until a snapshot shows it. A row is about one source or one item.
--
-- pending    not sent, or certainly without effect
-- attempted  sent, or about to be: nobody knows what became of it
-- confirmed  the server said yes; without a time of confirmation: set aside, since the last list is without its object
-- refused    definitely not; kept until dismissed, without effect on what is seen

CREATE TABLE outbox (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    -- The rows of one act share it: the id of its first row.
    act           INTEGER NOT NULL,
    journalist_id TEXT NOT NULL,
    kind          TEXT NOT NULL CHECK (kind IN ('star', 'unstar', 'seen', 'delete_source', 'delete_item')),
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
    -- Of a row that was refused or set aside: an attempt before that may have had an effect.
    sent          INTEGER NOT NULL DEFAULT 0,
    -- The last snapshot that had been asked for when the row was last attempted or was confirmed.
    snapshot      INTEGER NOT NULL DEFAULT 0,
    confirmed_us  INTEGER,
    -- In how many snapshots asked for after the confirmation a deleted object was listed. Of a reply that was sent, in how
    -- many lists that were not whole it is missing; of any other row that was refused, whether the last list is without its
    -- object.
    listed        INTEGER NOT NULL DEFAULT 0,
    -- That it was not deleted has been told.
    not_deleted   INTEGER NOT NULL DEFAULT 0,
    CHECK ((kind IN ('seen', 'delete_item')) = (item_id IS NOT NULL)),
    CHECK ((item_id IS NULL) = (item_kind IS NULL) AND (item_id IS NULL) = (item_order IS NULL))
) STRICT;
CREATE INDEX outbox_source ON outbox (source_id);
CREATE INDEX outbox_item ON outbox (item_id) WHERE item_id IS NOT NULL;
CREATE INDEX outbox_act ON outbox (act);

-- The acts that shape what is seen: what the server has confirmed to anybody (or its list, of what is not there any more),
-- and what whoever signed in last has done besides. Acts of others that are not confirmed show in their own views only.
CREATE VIEW effective_act AS
SELECT * FROM outbox
WHERE state = 'confirmed'
   OR (state IN ('pending', 'attempted') AND journalist_id = (SELECT journalist_id FROM local_journalist));

DROP VIEW visible_item;
DROP VIEW visible_source;

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
