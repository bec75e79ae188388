SELECT queues, taken FROM queen.take_wakes()
