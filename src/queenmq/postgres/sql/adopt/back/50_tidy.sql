DROP FUNCTION IF EXISTS queen_after.adopt_insert(text, text, text[]);
DROP TABLE IF EXISTS queen_after.adopt_name;
DROP VIEW queen_after.adopt_old_queues, queen_after.adopt_old_partitions, queen_after.adopt_old_messages, queen_after.adopt_old_partition_consumers,
          queen_after.adopt_old_consumer_groups_metadata, queen_after.adopt_old_dead_letter_queue;
DROP TABLE queen_after.adopt_partition, queen_after.adopt_place, queen_after.adopt_message, queen_after.adopt_position, queen_after.adopt_dead,
           queen_after.adopt_queue;
