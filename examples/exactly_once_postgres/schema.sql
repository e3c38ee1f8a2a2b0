-- The results of the example: replace this table by yours.
CREATE TABLE IF NOT EXISTS page_views (
    page  text PRIMARY KEY,
    views bigint NOT NULL
);

-- How far each partition is counted, and the fencing token of its newest owner.
CREATE TABLE IF NOT EXISTS positions (
    topic       text,
    part        integer,
    next_offset bigint NOT NULL,
    token       bigint NOT NULL,
    PRIMARY KEY (topic, part)
);
