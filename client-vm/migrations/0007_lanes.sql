-- What is to be fetched or decrypted next is looked for by what is noted of items, after each change. Texts stand in the same
-- rows: without an index all of them would be read each time.
CREATE INDEX local_item_state ON local_item (state, is_reply, item_id);
