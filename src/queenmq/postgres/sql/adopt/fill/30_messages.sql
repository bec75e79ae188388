-- The messages: numbered 1, 2, 3, … in each partition in the order in which the older system delivered them, (created_at, id).
-- First the numbers alone (narrow rows: the only sort), then the rows. Where created_at was null the older system delivered last.
CREATE UNLOGGED TABLE queen.adopt_message AS
SELECT m.id, p.partition_id, row_number() OVER w AS seq,
       coalesce(m.created_at, max(m.created_at) OVER w + interval '1 microsecond', queen.now()) AS created_at,
       coalesce(nullif(m.transaction_id, ''), m.id::text) COLLATE "C" AS transaction_id
  FROM queen.adopt_old_messages m
  JOIN queen.adopt_partition p ON p.old_id = m.partition_id
WINDOW w AS (PARTITION BY p.partition_id ORDER BY m.created_at, m.id);
CREATE INDEX ON queen.adopt_message (partition_id, created_at, id);
ANALYZE queen.adopt_message;

-- A transaction id that occurs twice in a partition stays with the first; the others get their old message id behind it.
CREATE UNLOGGED TABLE queen.adopt_renamed AS
SELECT d.id, left(d.transaction_id, 200) || '#' || d.id AS transaction_id
  FROM (SELECT a.id, a.transaction_id, row_number() OVER (PARTITION BY a.partition_id, a.transaction_id ORDER BY a.seq) AS copy
          FROM queen.adopt_message a
          JOIN (SELECT partition_id, transaction_id FROM queen.adopt_message GROUP BY 1, 2 HAVING count(*) > 1) k USING (partition_id, transaction_id)) d
 WHERE d.copy > 1;
UPDATE queen.adopt_message a SET transaction_id = r.transaction_id FROM queen.adopt_renamed r WHERE r.id = a.id;

SELECT set_config('queen.lookup_maintained', 'on', true);
INSERT INTO queen.messages (partition_id, seq, transaction_id, trace_id, created_at, is_encrypted, payload)
SELECT a.partition_id, a.seq, a.transaction_id, m.trace_id, a.created_at, nullif(m.is_encrypted, false), coalesce(m.payload, 'null')
  FROM queen.adopt_message a
  JOIN queen.adopt_old_messages m ON m.id = a.id;
SELECT set_config('queen.lookup_maintained', '', true);

INSERT INTO queen.partition_lookup (partition_id, next_seq, first_seq, last_message_created_at, updated_at)
SELECT partition_id, max(seq) + 1, 1, max(created_at), queen.now() FROM queen.adopt_message GROUP BY partition_id ORDER BY partition_id;

-- A partition without messages sleeps; its first push wakes it.
UPDATE queen.partitions p SET asleep_next_seq = 1 WHERE NOT EXISTS (SELECT FROM queen.partition_lookup l WHERE l.partition_id = p.id);
ANALYZE queen.messages, queen.partition_lookup, queen.partitions;
