SELECT name, digest FROM queen.schema_files
