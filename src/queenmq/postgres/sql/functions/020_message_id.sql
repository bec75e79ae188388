-- A message's id is its address: a UUIDv8 of the partition (32 bits), the seq (64 bits) and this database's salt (26 bits).
-- Made and read here, never stored. 00112233-4455-8667-8899-aabbccddeeff: partition, seq's high half, salt, salt, seq's low part.
CREATE OR REPLACE FUNCTION queen.message_id(p_partition int, p_seq bigint) RETURNS uuid
LANGUAGE sql STABLE STRICT AS $$
    SELECT (lpad(to_hex(p_partition), 8, '0') || lpad(to_hex(p_seq >> 48), 4, '0')
            || '8' || lpad(to_hex(salt >> 14), 3, '0')
            || to_hex(8 | ((salt >> 12) & 3)) || lpad(to_hex(salt & 4095), 3, '0')
            || lpad(to_hex(p_seq & 281474976710655), 12, '0'))::uuid
      FROM (SELECT (value #>> '{}')::int AS salt FROM queen.system_state WHERE key = 'salt') s
$$;

-- The address behind an id; no row when it is none of this database's ids.
CREATE OR REPLACE FUNCTION queen.message_address(p_id uuid, OUT partition_id int, OUT seq bigint) RETURNS SETOF record
LANGUAGE sql STABLE STRICT AS $$
    SELECT a.partition_id, a.seq
      FROM (SELECT replace(p_id::text, '-', '') AS h) t,
           LATERAL (SELECT ('x' || substr(h, 1, 8))::bit(32)::int AS partition_id,
                           (('x' || substr(h, 9, 4))::bit(16)::bigint << 48) | ('x' || lpad(substr(h, 21, 12), 16, '0'))::bit(64)::bigint AS seq) a
     WHERE queen.message_id(a.partition_id, a.seq) = p_id
$$;
