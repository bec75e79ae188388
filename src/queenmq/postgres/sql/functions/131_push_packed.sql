-- `push_messages` for plain items (no rare columns) that stand grouped by partition, in the order of p_partitions: which and position follow
-- from p_counts, and the ids and payloads come as one text each, separated by the record separator (U+001E, which no JSON text contains;
-- an id that does takes push_messages). A driver encodes one text many times faster than an array of as many.
CREATE OR REPLACE FUNCTION queen.push_packed(
    p_partitions int[], p_counts int[], p_transactions text, p_payloads text,
    p_queues int[] DEFAULT NULL, p_versions bigint[] DEFAULT NULL, p_skip boolean DEFAULT false, p_notify boolean DEFAULT true,
    OUT bases bigint[], OUT seqs bigint[], OUT duplicates boolean[])
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_transactions text[] := string_to_array(p_transactions, E'\x1e');
    v_payloads     text[] := string_to_array(p_payloads, E'\x1e');
    v_which        int[];
    v_position     int[];
    v_items        bigint := (SELECT sum(c) FROM unnest(p_counts) c);
BEGIN
    IF cardinality(v_transactions) <> v_items OR cardinality(v_payloads) <> v_items THEN
        RAISE EXCEPTION 'the ids and payloads must be as many as the counts say' USING ERRCODE = 'QM002';
    END IF;
    IF cardinality(p_partitions) > 1 THEN
        SELECT array_agg(x.which), array_agg(x.position) INTO v_which, v_position
          FROM (SELECT u.which::int, generate_series(0, u.count - 1) AS position FROM unnest(p_counts) WITH ORDINALITY u(count, which)) x;
    END IF;
    SELECT p.bases, p.seqs, p.duplicates INTO bases, seqs, duplicates
      FROM queen.push_messages(p_partitions, p_counts, v_which, v_position, v_transactions, v_payloads::json[],
                               p_queues => p_queues, p_versions => p_versions, p_skip => p_skip, p_notify => p_notify) p;
END
$$;
