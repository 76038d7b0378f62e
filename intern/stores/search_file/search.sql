-- The tables of search.db, which holds what a search in one community needs: a copy of `documents` and
-- `document_vectors` (schema.sql), up to `position` of the change log of the community that `origin` names. Everything
-- here can be made again.
create table search_copy (
    one integer primary key check (one = 1),
    origin text not null,
    position integer not null
) strict;
insert into search_copy values (1, '', 0);

-- Documents. Texts have a `rid` below 2^40, descriptions one from there on, so that a search for
-- texts need not score descriptions. VACUUM leaves `rid` alone.
create table search_documents (
    rid integer primary key,
    id text not null,
    source_id text not null,
    kind text not null,
    part text not null,
    type text not null,
    status text not null,
    path text not null,
    title text not null,
    text text not null,
    unspaced text not null,
    stems text not null,
    meta text not null,
    stamp text not null,
    at text not null,
    visibility text not null,
    guild_id text not null
) strict;
create index documents_by_id on search_documents (id);
create index documents_of_source on search_documents (source_id);

-- `stems` are those of a text in German, French, Spanish or Portuguese; the tokenizer stems all words as English ones.
-- The full-text tables hold no text of their own: triggers keep them in step with the documents. With `secure-delete`,
-- their pages keep nothing of a deleted document.
create virtual table search_words using fts5 (
    title, path, text, stems, content = 'search_documents', content_rowid = 'rid',
    tokenize = 'porter unicode61 remove_diacritics 2'
);
create virtual table search_trigrams using fts5 (
    unspaced, content = 'search_documents', content_rowid = 'rid', tokenize = 'trigram'
);
insert into search_words (search_words, rank) values ('secure-delete', 1);
insert into search_trigrams (search_trigrams, rank) values ('secure-delete', 1);
create trigger document_added after insert on search_documents begin
    insert into search_words (rowid, title, path, text, stems)
        values (new.rid, new.title, new.path, new.text, new.stems);
    insert into search_trigrams (rowid, unspaced) values (new.rid, new.unspaced);
end;
create trigger document_removed after delete on search_documents begin
    insert into search_words (search_words, rowid, title, path, text, stems)
        values ('delete', old.rid, old.title, old.path, old.text, old.stems);
    insert into search_trigrams (search_trigrams, rowid, unspaced) values ('delete', old.rid, old.unspaced);
end;
-- A topic that grew is put whole; the documents in it that stayed the same are not indexed again.
create trigger document_changed after update on search_documents
    when (old.title, old.path, old.text, old.unspaced, old.stems)
        is not (new.title, new.path, new.text, new.unspaced, new.stems) begin
    insert into search_words (search_words, rowid, title, path, text, stems)
        values ('delete', old.rid, old.title, old.path, old.text, old.stems);
    insert into search_words (rowid, title, path, text, stems)
        values (new.rid, new.title, new.path, new.text, new.stems);
    insert into search_trigrams (search_trigrams, rowid, unspaced) values ('delete', old.rid, old.unspaced);
    insert into search_trigrams (rowid, unspaced) values (new.rid, new.unspaced);
end;

-- Sixteen documents of a hundred words that nobody asks for: among a handful of real ones, a word that one of them holds
-- would look as common as one that all hold, and score nothing.
with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < 16)
insert into search_documents
    select -n, '', '', '', '', '', '', '', '', replace(hex(zeroblob(50)), '0', 'zz '), '', '', '{}', '', '', '', ''
    from numbers;

-- Vectors of documents. Each goes when its text changes. Processes with vectors in memory read in `search_changes`
-- which of them to read again, and read all of them after missing more than 8,192 changes.
create table search_vectors (
    rid integer primary key references search_documents (rid) on delete cascade,
    model text not null,
    vector blob not null
) strict;
create index vectors_of_model on search_vectors (model);
create table search_changes (
    n integer primary key autoincrement,
    rid integer not null
) strict;
create trigger vector_added after insert on search_vectors begin
    insert into search_changes (rid) values (new.rid);
end;
create trigger vector_changed after update on search_vectors begin
    insert into search_changes (rid) values (new.rid);
end;
create trigger vector_removed after delete on search_vectors begin
    insert into search_changes (rid) values (old.rid);
end;
create trigger document_of_vector_changed
    after update of source_id, kind, part, type, status, visibility, guild_id, at on search_documents
    when exists (select 1 from search_vectors where rid = new.rid) begin
    insert into search_changes (rid) values (new.rid);
end;
create trigger text_of_vector_changed after update of title, text on search_documents
    when old.title <> new.title or old.text <> new.text begin
    delete from search_vectors where rid = new.rid;
end;
create trigger change_noted after insert on search_changes begin
    delete from search_changes where n <= new.n - 8192;
end;
