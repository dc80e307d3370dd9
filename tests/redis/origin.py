"""The YAML blocks of the document that storage backends were first described in, as they stand there."""

QUEUES = """\
# config/queues.yaml
queues:
  high-priority:
    backend: redis-lists
    redis:
      database: 0
      key_prefix: "queue:high:"

  analytics:
    backend: redis-streams
    redis:
      database: 1
      stream_name: "analytics-stream"
      consumer_group: "processors"
      max_length: 10000

  bulk-processing:
    backend: keydb
    keydb:
      endpoint: "keydb-cluster.internal:6379"
      pool_size: 20
      read_timeout: 500ms

backends:
  redis-lists:
    driver: redis
    url: redis://localhost:6379/0

  redis-streams:
    driver: redis
    url: redis://localhost:6379/1
    stream_config:
      block_timeout: 1s
      claim_min_idle: 30s
      claim_count: 100

  keydb:
    driver: keydb
    url: keydb://keydb-cluster:6379
    performance:
      pipeline_size: 100
      read_timeout: 100ms
"""

LISTS_TUNING = """\
config:
  pipeline_size: 100        # Batch commands
  connection_pool: 20       # Concurrent connections
  lua_script_cache: true    # Pre-load scripts
"""

STREAMS_TUNING = """\
config:
  block_timeout: 1s         # Balance latency/CPU
  max_length: 100000        # Prevent unbounded growth
  trim_strategy: "MAXLEN"   # Memory management
"""

KEYDB_TUNING = """\
config:
  read_timeout: 100ms       # Aggressive timeouts
  write_timeout: 200ms
  max_pipeline_size: 1000   # Large batches
  compression: true         # Network efficiency
"""

SECURITY = """\
security:
  redis-lists:
    auth: "password123"
    tls: false

  redis-streams:
    auth: "streampass456"
    tls: true
    cert_file: "/certs/redis.crt"

  keydb:
    auth_token: "${KEYDB_TOKEN}"
    tls: true
    skip_verify: false
"""
