SELECT id, name, namespace, task, max_size, priority, encryption_enabled, config_version FROM queen.queues WHERE name = $1
