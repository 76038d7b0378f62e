-- The tables of intern.db. Times that are integers are milliseconds since 1970 (UTC); times that are text are ISO 8601.

-- Each community, with the position of its newest change. A position is given while the community's row is locked, so
-- no reader sees a change before an earlier one. Followers read in `changes` what changed after the position that they
-- have reached.
create table communities (
    community text primary key,
    position integer not null,
    generation integer not null default 0
) strict, without rowid;
create table changes (
    community text not null,
    kind text not null,
    name text not null,
    position integer not null,
    primary key (community, kind, name)
) strict, without rowid;
create index changes_by_position on changes (community, kind, position);

-- The servers that invited a hosting process. It lists all communities, so it belongs to none of them.
create table hosted_communities (
    name text primary key,
    guild_ids text not null,
    title text not null,
    chosen text not null,
    state text not null,
    joined_at integer not null,
    left_at integer,
    changed_at integer not null,
    is_open integer not null default 0
) strict, without rowid;

-- The archive, where a community may move to another process; else it is in files. A week's blocks, one after another.
create table captures (
    community text not null,
    week text not null,
    start integer not null,
    block blob not null,
    primary key (community, week, start)
) strict, without rowid;

-- What was decided about each archived pair, and the topics. A regeneration drafts decisions, and blocks of the next
-- generation; the current one is the community's. A pair's time is its id's, in microseconds since 1970. `pair` is its id
-- with the whole fraction, and null in a decision about messages.
create table decisions (
    community text not null,
    draft integer not null,
    position integer not null,
    pair text,
    action text not null,
    decision text not null,
    primary key (community, draft, position)
) strict, without rowid;
create table blocks (
    community text not null,
    generation integer not null,
    time integer not null,
    topic text not null,
    qa_id text not null,
    conversation_id text,
    answered integer not null,
    block blob not null,
    primary key (community, generation, time)
) strict, without rowid;
create index blocks_of_topic on blocks (community, generation, topic, answered, time);
create index blocks_of_conversation on blocks (community, generation, conversation_id);
create table regeneration (
    community text not null,
    n integer not null,
    line text not null,
    primary key (community, n)
) strict, without rowid;

-- What is known of each source that an index lists.
create table sources (
    community text not null,
    catalogue text not null,
    source_id text not null,
    source text not null,
    primary key (community, catalogue, source_id)
) strict, without rowid;

-- The hash of each text file that is written from all this, as it is and as it was before: a person's edit is neither.
-- Its size and its time, once it is written: a file that still has them was not edited.
create table projected_files (
    community text not null,
    file text not null,
    digest blob not null,
    before blob not null,
    size integer not null,
    mtime_ns integer not null,
    primary key (community, file)
) strict, without rowid;

-- Replies: what is to be posted, and which messages it is for.
create table posts (
    rid integer primary key,
    community text not null,
    question_id text not null,
    channel_id text not null,
    target text not null,
    thread_id text,
    state text not null check (state in ('open', 'finished', 'dropped')),
    reason text not null,
    changed_at text not null,
    notice integer not null default 0,
    buttons text not null default '[]',
    mention_role text,
    called integer not null default 0,
    unique (community, question_id)
) strict;
create index posts_of_thread on posts (community, thread_id) where state = 'finished';
create index posts_in_work on posts (community, rid) where state = 'open';
create index posts_by_end on posts (community, changed_at, rid) where state = 'finished';
create table post_parts (
    community text not null,
    question_id text not null,
    n integer not null,
    text text not null,
    nonce text not null,
    message_id text,
    primary key (community, question_id, n),
    foreign key (community, question_id) references posts (community, question_id) on delete cascade
) strict, without rowid;
create index parts_by_message on post_parts (community, message_id) where message_id is not null;
create table post_messages (
    community text not null,
    message_id text not null,
    question_id text not null,
    primary key (community, message_id),
    foreign key (community, question_id) references posts (community, question_id) on delete cascade
) strict, without rowid;
create index messages_of_post on post_messages (community, question_id);

-- The record of each question, with a row for each of its messages and for each citation of its posted answer. Parts
-- are kept for different times, and then null: the trace in `debug`, the words in `texts`, and whether the answer is
-- watched in `retracted`. `place_id` is the channel, or the one that a thread hangs in.
create table answers (
    rid integer primary key,
    community text not null,
    question_id text not null,
    channel_id text not null,
    at text not null,
    changed_at text not null,
    outcome text not null,
    reason text not null,
    debug text,
    author_id text,
    guild_id text,
    place_id text not null,
    place text not null,
    message_ids text not null,
    texts text,
    seconds real not null,
    tokens integer not null,
    cost real not null,
    gap text not null check (gap in ('', 'open', 'answered', 'dismissed')),
    retracted text check (retracted in ('', 'open', 'retracted', 'dropped')),
    unique (community, question_id)
) strict;
create index answers_of_channel on answers (community, channel_id, changed_at);
create index answers_of_author on answers (community, author_id) where author_id is not null;
create index answers_with_trace on answers (community, at, rid) where debug is not null;
create index answers_with_words on answers (community, at, rid) where texts is not null;
create index answers_watched on answers (community, at, rid) where retracted is not null;
create table answer_messages (
    community text not null,
    message_id text not null,
    question_id text not null,
    primary key (community, message_id),
    foreign key (community, question_id) references answers (community, question_id)
        on delete cascade on update cascade
) strict, without rowid;
create index messages_of_answer on answer_messages (community, question_id);
create table answer_citations (
    community text not null,
    question_id text not null,
    n integer not null,
    source_id text not null,
    title text not null,
    quote text not null,
    digest text not null,
    state text not null check (state in ('', 'changed', 'extended', 'gone')),
    since text,
    primary key (community, question_id, n),
    foreign key (community, question_id) references answers (community, question_id)
        on delete cascade on update cascade
) strict, without rowid;
create index citations_of_source on answer_citations (community, source_id);

-- Votes; judged answers, each with its score, and the score that answers must reach; counts by day.
create table feedback (
    community text not null,
    question_id text not null,
    user_id text not null,
    vote text not null check (vote in ('up', 'down')),
    at text not null,
    primary key (community, question_id, user_id)
) strict, without rowid;
create table answer_judgements (
    community text not null,
    question_id text not null,
    judge text not null check (judge in ('team', 'deletion', 'vote', 'backtest')),
    setup text not null,
    score real not null,
    wrong integer not null,
    at text not null,
    primary key (community, question_id, judge)
) strict, without rowid;
create index judgements_by_age on answer_judgements (community, at, question_id, judge);
create table calibrations (
    community text primary key,
    setup text not null,
    max_wrong real not null,
    score real,
    links real,
    judged integer not null,
    answered integer not null,
    wrong integer not null,
    at text not null
) strict, without rowid;
create table daily_counts (
    community text not null,
    day text not null,
    name text not null,
    number integer not null,
    primary key (community, day, name)
) strict, without rowid;

-- Replies of the model to whole requests, and the questions that they were used for.
create table model_replies (
    community text not null,
    key text not null,
    reply blob not null,
    made_at text not null,
    used_at text not null,
    primary key (community, key)
) strict, without rowid;
create index replies_by_use on model_replies (community, used_at, key);
create table reply_uses (
    community text not null,
    message_id text not null,
    key text not null,
    at text not null,
    primary key (community, message_id, key)
) strict, without rowid;
create index uses_by_age on reply_uses (community, at);
create table reply_drops (
    community text primary key,
    count integer not null
) strict, without rowid;

-- The flight recorder: what answers, captures and descriptions were made from, compressed. `about` says whose words a
-- recording holds. Texts that recordings share are kept by their digests, which `texts` lists.
create table recordings (
    rid integer primary key,
    community text not null,
    kind text not null,
    subject text not null,
    at text not null,
    outcome text not null,
    unfit text not null,
    about text not null,
    texts text not null,
    size integer not null,
    recording blob not null
) strict;
create index recordings_by_age on recordings (community, at);
create table recorded_texts (
    community text not null,
    digest text not null,
    text blob not null,
    primary key (community, digest)
) strict, without rowid;

-- What endpoints accept in a request, whichever community asks; what calls cost, in the currency of the prices at that
-- time.
create table endpoint_forms (
    endpoint text primary key,
    form text not null, -- JSON: the place of each part's value
    at text not null
) strict, without rowid;
create table usage (
    community text not null,
    day text not null,
    prompt text not null,
    calls integer not null,
    prompt_tokens integer not null,
    completion_tokens integer not null,
    cost real not null default 0,
    cached_tokens integer not null default 0,
    primary key (community, day, prompt)
) strict, without rowid;

-- How far each server and each channel was read, as ids of messages.
create table attended_servers (
    community text not null,
    guild_id text not null,
    until integer not null,
    primary key (community, guild_id)
) strict, without rowid;
create table checkpoints (
    community text not null,
    channel_id text not null,
    guild_id text not null,
    settled_to integer not null,
    primary key (community, channel_id)
) strict, without rowid;

-- Threads with an answer: when to look at each again, and who wrote the messages that were read there.
create table answered_threads (
    rid integer primary key,
    community text not null,
    thread_id text not null,
    look_at integer,
    unique (community, thread_id)
) strict;
create index answered_by_look on answered_threads (community, look_at, rid) where look_at is not null;
create table thread_messages (
    community text not null,
    thread_id text not null,
    message_id text not null,
    author_id text not null,
    is_outside integer not null,
    is_held integer not null,
    primary key (community, thread_id, message_id)
) strict, without rowid;
create index thread_messages_by_id on thread_messages (community, message_id);
create index thread_messages_by_author on thread_messages (community, author_id);

-- Captures that wait until their attachments are in words, and what attachments say.
create table pending_captures (
    rid integer primary key autoincrement,
    community text not null,
    conversation_id text not null,
    request blob not null,
    reason text not null,
    attempts integer not null,
    next_at text not null,
    since text not null,
    version integer not null default 0,
    unique (community, rid)
) strict;
create index pending_by_conversation on pending_captures (community, conversation_id);
create table pending_messages (
    community text not null,
    message_id text not null,
    capture integer not null,
    primary key (community, message_id, capture),
    foreign key (community, capture) references pending_captures (community, rid) on delete cascade
) strict, without rowid;
create index messages_of_pending on pending_messages (community, capture);
create table attachment_texts (
    rid integer primary key autoincrement,
    community text not null,
    message_id text not null,
    attachment_id text not null,
    text text not null,
    unique (community, rid),
    unique (community, message_id, attachment_id)
) strict;

-- Work on archived pairs that was begun and did not end; parked pairs.
create table attempts (
    community text not null,
    qa_id text not null,
    begun integer not null,
    primary key (community, qa_id)
) strict, without rowid;
create table retries (
    community text not null,
    qa_id text not null,
    tries integer not null,
    next_at text,
    primary key (community, qa_id)
) strict, without rowid;

-- Jobs for the process that holds the data folder.
create table jobs (
    id integer primary key autoincrement,
    community text not null,
    kind text not null,
    key text not null,
    payload blob not null,
    state text not null check (state in ('waiting', 'claimed', 'finished')),
    claims integer not null default 0,
    result blob,
    error text,
    exit_code integer
) strict;
create index jobs_by_state on jobs (community, state, id);
create index jobs_waiting on jobs (community) where state = 'waiting';

-- Members: who has seen the notice about private messages; names, with the form that is searched, and whose answers of
-- the team were captured; roles.
create table greeted_members (
    community text not null,
    user_id text not null,
    at text not null,
    primary key (community, user_id)
) strict, without rowid;
create table member_names (
    rid integer primary key,
    community text not null,
    author_id text not null,
    name text not null,
    look text not null,
    is_team integer not null default 0,
    unique (community, author_id, name),
    unique (community, rid)
) strict;
create table member_roles (
    community text not null,
    guild_id text not null,
    user_id text not null,
    roles text not null,
    seen_at integer not null,
    primary key (community, guild_id, user_id)
) strict, without rowid;
create index roles_by_age on member_roles (community, seen_at);

-- Documents that can be searched, and their vectors: search.db is made from them (search.sql). In each community, texts
-- have a `rid` below 2^40, descriptions one from there on, in the order in which they were put. A vector goes when its
-- text changes.
create table documents (
    community text not null,
    id text not null,
    rid integer not null,
    source_id text not null,
    kind text not null,
    part text not null,
    type text not null,
    status text not null,
    visibility text not null check (visibility in ('shared', 'private')),
    guild_id text not null,
    path text not null,
    title text not null,
    text text not null,
    meta text not null,
    stamp text not null,
    at text not null,
    primary key (community, id),
    unique (community, rid)
) strict;
create index documents_of_source on documents (community, source_id);
create index stamps_of_kind on documents (community, kind, source_id, stamp);
create table document_vectors (
    community text not null,
    rid integer not null,
    model text not null,
    vector blob not null,
    primary key (community, rid),
    foreign key (community, rid) references documents (community, rid) on delete cascade
) strict;
create index vectors_of_model on document_vectors (community, model, rid);
-- Tells a community of this database from one of another, so that no projection follows the wrong one.
create table search_origins (
    community text primary key,
    id text not null
) strict, without rowid;

-- Vectors by the hash of model and text, so that an endpoint is not paid twice; `used_at` is in seconds since 1970.
create table vector_cache (
    community text not null,
    key text not null,
    vector blob not null,
    used_at integer not null,
    primary key (community, key)
) strict, without rowid;
create index vectors_by_use on vector_cache (community, used_at);

-- Conversations that were read, and what was learned from each. `first_at` is the first time that the conversation said
-- so, however often it was read since.
create table conversations (
    rid integer primary key,
    community text not null,
    id text not null,
    agent_id text not null,
    origin text not null check (origin in ('capture', 'answer', 'note')),
    guild_id text,
    channel_id text,
    message_ids text not null,
    last_message_at integer not null,
    content_hash text not null,
    is_withdrawn integer not null default 0,
    unique (community, id)
) strict;
create table facts (
    rid integer primary key,
    community text not null,
    id text not null,
    agent_id text not null,
    category text not null,
    content text not null,
    summary text not null,
    visibility text not null check (visibility in ('shared', 'private', 'secret')),
    confidence real not null,
    first_seen_at integer not null,
    last_seen_at integer not null,
    occurrence_count integer not null,
    supersedes text,
    is_active integer not null,
    retired_at integer,
    retired_why text not null default '',
    wording text not null,
    metadata text not null default '{}',
    unique (community, id),
    foreign key (community, supersedes) references facts (community, id)
) strict;
create unique index facts_by_supersedes on facts (community, supersedes) where supersedes is not null;
create index facts_by_wording on facts (community, wording);
create index facts_by_category on facts (community, category);
create index facts_by_agent on facts (community, agent_id);
create index facts_by_visibility on facts (community, visibility);
-- Words of all facts. It holds no text of its own: triggers keep it in step, and with `secure-delete` its pages keep
-- nothing of a deleted fact. PostgreSQL has a function of this name for it.
create virtual table facts_fts using fts5 (
    content, summary, content = 'facts', content_rowid = 'rid', tokenize = 'porter unicode61 remove_diacritics 2'
);
insert into facts_fts (facts_fts, rank) values ('secure-delete', 1);
create trigger fact_added after insert on facts begin
    insert into facts_fts (rowid, content, summary) values (new.rid, new.content, new.summary);
end;
create trigger fact_removed after delete on facts begin
    insert into facts_fts (facts_fts, rowid, content, summary) values ('delete', old.rid, old.content, old.summary);
end;
create trigger fact_changed after update of content, summary on facts begin
    insert into facts_fts (facts_fts, rowid, content, summary) values ('delete', old.rid, old.content, old.summary);
    insert into facts_fts (rowid, content, summary) values (new.rid, new.content, new.summary);
end;
create table fact_beliefs (
    community text not null,
    fact_id text not null,
    since integer not null,
    until integer,
    primary key (community, fact_id),
    foreign key (community, fact_id) references facts (community, id)
) strict, without rowid;
create table fact_occurrences (
    rid integer primary key,
    community text not null,
    id text not null,
    fact_id text not null,
    conversation_id text not null,
    timestamp integer not null,
    context_snippet text not null,
    sentiment text not null,
    is_withdrawn integer not null default 0,
    first_at integer not null,
    unique (community, id),
    foreign key (community, fact_id) references facts (community, id),
    foreign key (community, conversation_id) references conversations (community, id)
) strict;
create index occurrences_of_fact on fact_occurrences (community, fact_id);
create index occurrences_of_conversation on fact_occurrences (community, conversation_id);
create table nuggets (
    rid integer primary key,
    community text not null,
    id text not null,
    conversation_id text not null,
    topic text not null,
    timestamp integer not null,
    topic_summary text not null,
    detailed_analysis text not null,
    status text not null check (status in ('FACT', 'SPECULATION', 'COMMUNITY_OPINION')),
    keywords text not null,
    source_message_ids text not null,
    user_ids_involved text not null,
    guild_id text,
    channel_id text,
    unique (community, id),
    foreign key (community, conversation_id) references conversations (community, id)
) strict;
create index nuggets_of_conversation on nuggets (community, conversation_id);
create table extraction_log (
    community text not null,
    conversation_id text not null,
    content_hash text not null,
    extracted_at integer not null,
    model_used text not null,
    facts_extracted integer not null default 0,
    facts_updated integer not null default 0,
    facts_deduplicated integer not null default 0,
    facts_secret integer not null default 0,
    nuggets_extracted integer not null default 0,
    attempts integer not null default 0,
    next_at integer,
    error text,
    primary key (community, conversation_id),
    foreign key (community, conversation_id) references conversations (community, id)
) strict, without rowid;
create table extractions_due (
    rid integer primary key,
    community text not null,
    conversation_id text not null,
    unique (community, conversation_id)
) strict;
create table positions (
    community text not null,
    follower text not null,
    position text not null,
    primary key (community, follower)
) strict, without rowid;

-- Documents and links that are no source, and why.
create table skipped_sources (
    community text not null,
    kind text not null,
    place text not null,
    reason text not null,
    since text not null,
    primary key (community, kind, place)
) strict, without rowid;

-- A row that is written to learn whether the disk accepts writes.
create table heartbeat (
    community text primary key,
    at text not null
) strict, without rowid;
