-- Search: an index of what messages and replies say and of the names of files, as far as they are decrypted.

-- `words` is what `search_words` makes of a text: the words as they are compared, parted by single spaces (its code says how).
-- The tokenizer has nothing to add: it parts at ASCII characters that are no letters or digits. The row's number is that of
-- `local_item`.
CREATE VIRTUAL TABLE search USING fts5(words, tokenize = 'ascii', columnsize = 0);
-- What is deleted leaves the pages of the index at once, and not when they are next merged.
INSERT INTO search (search, rank) VALUES ('secure-delete', 1);

-- Whether something was taken out of the index since its inner pages were last looked at: they hold beginnings of words.
CREATE TABLE search_erased (
    only   INTEGER PRIMARY KEY CHECK (only = 1),
    erased INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO search_erased (only) VALUES (1);

-- The index follows the items, whoever changes them.
CREATE TRIGGER search_insert AFTER INSERT ON local_item WHEN new.state = 'decrypted'
BEGIN
    INSERT INTO search (rowid, words) SELECT new.id, search_words(coalesce(new.text, new.name))
    WHERE coalesce(new.text, new.name) IS NOT NULL;
END;
CREATE TRIGGER search_update AFTER UPDATE OF state, name, text ON local_item
WHEN old.state = 'decrypted' OR new.state = 'decrypted'
BEGIN
    DELETE FROM search WHERE rowid = old.id;
    UPDATE search_erased SET erased = 1 WHERE old.state = 'decrypted';
    INSERT INTO search (rowid, words) SELECT new.id, search_words(coalesce(new.text, new.name))
    WHERE new.state = 'decrypted' AND coalesce(new.text, new.name) IS NOT NULL;
END;
CREATE TRIGGER search_delete AFTER DELETE ON local_item WHEN old.state = 'decrypted'
BEGIN
    DELETE FROM search WHERE rowid = old.id;
    UPDATE search_erased SET erased = 1;
END;

-- What is there.
INSERT INTO search (rowid, words)
SELECT id, search_words(coalesce(text, name)) FROM local_item
WHERE state = 'decrypted' AND coalesce(text, name) IS NOT NULL;
