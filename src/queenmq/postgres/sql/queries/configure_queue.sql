SELECT queen.configure_queue($1, $2, $3, $4::jsonb)::text
