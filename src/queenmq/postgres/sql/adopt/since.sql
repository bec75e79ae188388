-- What a way back leaves in queen_after, or has carried.
SELECT (SELECT count(*) FROM queen_after.adopt_message) AS messages,
       (SELECT value -> 'carried_back' FROM queen_after.system_state WHERE key = 'adoption')::text AS carried
