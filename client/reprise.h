/* The C interface of Reprise, a KV-cache store: libreprise.so.
 *
 * Handles are opaque. A client owns its leases: release them before rp_close.
 *
 * Bytes are a pointer and a length, never terminated. Text that goes in is UTF-8, pointer and
 * length; text that comes out as `const char*` is terminated and lives as long as its function
 * says.
 *
 * Functions return RP_OK or another rp_status; nothing is written to outputs on failure unless the
 * function says otherwise. No exception crosses this border; running out of memory ends the
 * process. rp_last_error tells a person what was wrong and what to do.
 *
 * A client, its leases and its staging slots belong to one thread at a time. Different clients are
 * independent. Functions without a client may be called from anywhere.
 *
 * Every call ends by the client's deadline. After RP_UNAVAILABLE, RP_TIMEOUT or RP_DAMAGED the
 * connection may be closed; then every call gives RP_UNAVAILABLE: close the client and connect
 * again.
 *
 * A token is an int32_t >= 0; a block is 128 consecutive tokens, aligned at a multiple of 128.
 * Partial blocks are never stored: functions that take tokens use the whole blocks of them. */
#ifndef REPRISE_H_
#define REPRISE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define RP_API __attribute__((visibility("default")))
#else
#define RP_API
#endif

/* 2: transports and landings. 3: slots in HBM. */
#define RP_ABI_VERSION 3
#define RP_BLOCK_TOKENS 128
#define RP_KEY_BYTES 16
#define RP_OPAQUE_KEY_BYTES_MAX 512

/* Numbers are for ever. */
typedef enum rp_status {
  RP_OK = 0,
  RP_NOT_FOUND = 1,   /* A miss. */
  RP_INVALID = 2,     /* An argument, or the request as a whole, is wrong. */
  RP_UNAVAILABLE = 3, /* No daemon there, or the connection ended. */
  RP_TIMEOUT = 4,     /* The deadline passed first. */
  RP_DAMAGED = 5,     /* A check failed on what the daemon sent or holds. */
  RP_BUSY = 6,        /* A limit was reached: try again later. */
  RP_REFUSED = 7,     /* Policy, quota, version or configuration: trying again does not help. */
  RP_INTERNAL = 8     /* A defect, here or in the daemon. */
} rp_status;

/* What became of one record. Numbers are those of the protocol (PROTOCOL.md, "Outcomes"). */
typedef uint8_t rp_outcome;
enum {
  RP_OUTCOME_OK = 0,
  RP_OUTCOME_NOT_FOUND = 1,
  RP_OUTCOME_BUSY = 2,
  RP_OUTCOME_REJECTED = 3,
  RP_OUTCOME_CORRUPT = 5,
  RP_OUTCOME_EXISTS = 9,
  RP_OUTCOME_PENDING = 10
};

/* Where a block's bytes are. */
enum { RP_TIER_NONE = 0, RP_TIER_HBM = 1, RP_TIER_DRAM = 2, RP_TIER_SSD = 3, RP_TIER_SHARED = 4 };

/* Whether a hit comes with its window (SWA state). */
enum {
  RP_WINDOW_NONE = 0,     /* Rebuild by replay. */
  RP_WINDOW_BOUNDARY = 1, /* Found at the block boundary where the hit ends. */
  RP_WINDOW_EXACT = 2     /* Found at window_index of the positions asked for. */
};

/* How records travel. Shared memory needs a "unix:" address, the others a "tcp:" one. AUTO: shared
 * memory, or RDMA where both sides can, else TCP. */
enum {
  RP_TRANSPORT_AUTO = 0,
  RP_TRANSPORT_SHARED = 1,
  RP_TRANSPORT_RDMA = 2,
  RP_TRANSPORT_TCP = 3
};

/* Why a hit stops. */
enum { RP_STOP_NONE = 0, RP_STOP_NOT_STORED = 1, RP_STOP_PENDING = 2 };

typedef struct rp_key {
  uint8_t bytes[RP_KEY_BYTES]; /* The first half of a block's hash. */
} rp_key;

/* An exact prefix: its hash, cut to a key, and its length in tokens. */
typedef struct rp_window_key {
  rp_key prefix;
  uint64_t position;
} rp_window_key;

typedef struct rp_client rp_client;
typedef struct rp_lease rp_lease;
typedef struct rp_landing rp_landing;
typedef struct rp_slot_lease rp_slot_lease;

/* "ok", "not_found", ...: never NULL, static. */
RP_API const char* rp_status_name(rp_status status);
RP_API const char* rp_outcome_name(rp_outcome outcome);
/* RP_ABI_VERSION of the library; refuse to go on when it differs from the header's. */
RP_API uint32_t rp_abi_version(void);

/* ---- Connection ---- */

typedef struct rp_options {
  uint32_t struct_bytes;  /* sizeof(rp_options). */
  uint32_t staging_slots; /* Records that a local client can put without a copy. 0: 64. */
  const char*
      address; /* "unix:/path" or "tcp:host:port"; NULL: unix:./reprise-data/reprised.sock. */
  size_t address_length;
  const char* name; /* Shown by the daemon's status; NULL: "c". */
  size_t name_length;
  int64_t deadline_us;      /* Of each call, microseconds. 0: 5 s. */
  int64_t spin_us;          /* Busy wait for a reply before sleeping. -1: none; 0: 50 us. */
  uint32_t no_local_memory; /* 1: never map the daemon's memory. */
  uint32_t verify_local;    /* 1: check payload checksums of records in local memory as well. */
  uint32_t transport;       /* RP_TRANSPORT_*: a way that cannot be had is an error, not another. */
  uint32_t reserved;
  const char* rdma_device; /* "off", "mlx5_0", "mlx5_0:1", "mlx5_0:1/3" (GID index); NULL: auto. */
  size_t rdma_device_length;
} rp_options;

/* Connects and says hello. `options` may be NULL. On failure *client is NULL and *error_text, when
 * error_text is not NULL, is what rp_last_error would say: static to the calling thread until its
 * next call of rp_connect. */
RP_API rp_status rp_connect(const rp_options* options, rp_client** client, const char** error_text);
/* Ends the connection; the daemon takes back what it leased. `client` may be NULL. */
RP_API void rp_close(rp_client* client);
/* What the last failed call of this client was about. Until the next call on the client. */
RP_API const char* rp_last_error(const rp_client* client);
RP_API void rp_set_deadline(rp_client* client, int64_t deadline_us);

typedef struct rp_facts {
  uint32_t struct_bytes; /* In: sizeof(rp_facts). */
  uint32_t record_bytes;
  uint32_t payload_bytes_max;
  uint32_t staging_slots;
  uint32_t local; /* 1: records are read in place. */
  uint32_t reserved;
  const char* model;          /* Lives as long as the client. */
  const char* server_version; /* Lives as long as the client. */
  const char* transport;      /* "shared memory", "unix", "rdma", "tcp": likewise. */
  const char* transport_note; /* With AUTO: why it is not RDMA, where that was tried. Else "". */
} rp_facts;
RP_API rp_status rp_get_facts(const rp_client* client, rp_facts* facts);

/* ---- Manifest and namespace ---- */

/* Everything that must agree for bytes to mean the same. Either `preset` names a model and fills
 * what follows from it, and the other fields refine it; or `preset` is NULL and the fields say it
 * all. Text fields are pointer and length; NULL is empty, except with a preset, where NULL keeps
 * the preset's. */
typedef struct rp_text {
  const char* data;
  size_t length;
} rp_text;
typedef struct rp_manifest {
  uint32_t struct_bytes; /* sizeof(rp_manifest). */
  uint32_t opaque;       /* 0: blocks are named by token ids; 1: by keys that the engine chooses. */
  rp_text preset;        /* "v4.1-flash", "nano". */
  rp_text model_config;  /* SHA-256 (hex) of the model's config, or a name. */
  rp_text weights_digest;
  rp_text tokenizer_digest;
  rp_text kv_formats;
  rp_text kv_sources;
  uint32_t payload_bytes; /* Bytes of payload in a block; 0 with a preset: the preset's. */
  uint32_t reserved;
  rp_text tenant_salt; /* Separates tenants that must not see each other's hits. */
  rp_text adapter;     /* LoRA or adapter identity. */
  rp_text engine;      /* Opaque kind: engine, version, layout fingerprint. */
} rp_manifest;

/* Fills `manifest` with zeros and its size, and the preset when `preset` is not NULL. The text must
 * outlive the manifest. */
RP_API rp_status rp_manifest_init(rp_manifest* manifest, const char* preset, size_t preset_length);

/* A namespace on this connection: a small number for the calls below. Opening an equal manifest
 * again gives the same number. namespace_hash: 32 bytes, or NULL. */
RP_API rp_status rp_open_namespace(rp_client* client, const rp_manifest* manifest,
                                   uint32_t* namespace_id, uint8_t* namespace_hash);

/* ---- Keys ---- */

/* The keys of the whole blocks of tokens[0, token_count), in order: each over its parent's hash and
 * its own 128 ids. Writes at most key_capacity of them; *key_count is token_count / 128 always, so
 * a call with capacity 0 (keys may be NULL) asks for the number. */
RP_API rp_status rp_block_hashes(rp_client* client, uint32_t namespace_id, const int32_t* tokens,
                                 size_t token_count, rp_key* keys, size_t key_capacity,
                                 size_t* key_count);
/* The key for opaque bytes: 1 to RP_OPAQUE_KEY_BYTES_MAX of them. */
RP_API rp_status rp_opaque_key(rp_client* client, uint32_t namespace_id, const void* key,
                               size_t key_length, rp_key* out);
/* The window key of the exact prefix tokens[0, position); 0 < position <= token_count. */
RP_API rp_status rp_prefix_window_key(rp_client* client, uint32_t namespace_id,
                                      const int32_t* tokens, size_t token_count, uint64_t position,
                                      rp_window_key* out);

/* ---- Lookup ---- */

typedef struct rp_verdict {
  uint64_t hit_tokens;   /* hit_blocks * 128, or the exact position of the window that was found. */
  uint32_t hit_blocks;   /* The leading run of the keys. */
  uint32_t window_bytes; /* Of the snapshot found. */
  uint32_t window_index; /* With RP_WINDOW_EXACT. */
  uint8_t stop_reason;   /* RP_STOP_*. */
  uint8_t window_state;  /* RP_WINDOW_*. */
  uint8_t reserved[2];
} rp_verdict;

/* How much of the prefix the store holds. Pins nothing. windows: at most 16 exact positions beyond
 * a block boundary; NULL with 0. tiers: key_count bytes for RP_TIER_* of each block that hit, or
 * NULL. A miss is RP_OK with hit_blocks 0. */
RP_API rp_status rp_lookup(rp_client* client, uint32_t namespace_id, const rp_key* keys,
                           size_t key_count, const rp_window_key* windows, size_t window_count,
                           rp_verdict* verdict, uint8_t* tiers);

/* ---- Load ---- */

/* The leading run of the keys that the store holds, kept in place until the lease is released. A
 * miss is a shorter lease, RP_OK; rp_lease_stopped_by says why it ended. Release every lease that
 * was given. */
RP_API rp_status rp_acquire(rp_client* client, uint32_t namespace_id, const rp_key* keys,
                            size_t key_count, rp_lease** lease);
/* `lease` may be NULL. */
RP_API void rp_lease_release(rp_lease* lease);
RP_API uint32_t rp_lease_size(const rp_lease* lease);
RP_API uint32_t rp_lease_from_ssd(const rp_lease* lease);
RP_API rp_outcome rp_lease_stopped_by(const rp_lease* lease);
/* Record `index` where it lies: payload, padding, header, tokens. Until the lease is released. NULL
 * when index is out of range. */
RP_API const void* rp_lease_record(const rp_lease* lease, uint32_t index, size_t* bytes);
/* Its payload. */
RP_API const void* rp_lease_payload(const rp_lease* lease, uint32_t index, size_t* bytes);
/* Copies the payload, and then proves that the bytes were the block's all along. RP_UNAVAILABLE
 * when the lease was lost (what was copied is worthless); RP_INVALID when `capacity` is too small.
 */
RP_API rp_status rp_lease_copy_payload(const rp_lease* lease, uint32_t index, void* out,
                                       size_t capacity, size_t* bytes);
/* 1 when record `index` holds exactly these 128 token ids. */
RP_API int rp_lease_tokens_match(const rp_lease* lease, uint32_t index, const int32_t* tokens);

/* ---- Load into memory of one's own ---- */

/* Memory that records are put into: by RDMA straight from the daemon's memory, else by a copy. It
 * stays the caller's; release the landing before the memory goes, and before rp_close. */
RP_API rp_status rp_landing_register(rp_client* client, void* memory, size_t bytes,
                                     rp_landing** landing);
/* Device memory behind a dma-buf, RDMA alone: RP_REFUSED where the device or its driver cannot.
 * `fd` stays the caller's. */
RP_API rp_status rp_landing_register_dmabuf(rp_client* client, int fd, uint64_t offset,
                                            uint64_t bytes, rp_landing** landing);
/* `landing` may be NULL. */
RP_API void rp_landing_release(rp_landing* landing);

typedef struct rp_landed {
  uint32_t records; /* The leading run of the keys. */
  uint32_t from_ssd;
  rp_outcome stopped_by;
  uint8_t reserved[3];
} rp_landed;
/* As rp_acquire, but record i lies at offset + i * record_bytes of the landing, checked there; what
 * lies behind the run may have been written to. Records in device memory cannot be checked here. */
RP_API rp_status rp_fetch(rp_client* client, uint32_t namespace_id, const rp_key* keys,
                          size_t key_count, rp_landing* landing, uint64_t offset,
                          rp_landed* landed);

/* ---- Slots in HBM, for an engine on the daemon's GPU ---- */

#define RP_SLOT_HANDLE_BYTES_MAX 64
enum {
  RP_SLOT_HANDLE_CUDA_IPC = 1, /* A cudaIpcMemHandle_t. */
  RP_SLOT_HANDLE_HOST_TEST = 2 /* A daemon of tests: "PATH@OFFSET" of a file. */
};

/* The daemon's pool of slots. It stays as it is while the connection lasts. Slot i of every device
 * is bytes [i * stride_bytes, + slot_bytes) from where the device's handle leads
 * (cudaIpcOpenMemHandle): a block's payload, without header and tokens. */
typedef struct rp_slot_pool {
  uint32_t struct_bytes; /* In: sizeof(rp_slot_pool). */
  uint32_t handle_kind;  /* RP_SLOT_HANDLE_*. */
  uint32_t slots;
  uint32_t slot_bytes;
  uint64_t stride_bytes;
  uint32_t record_layout;    /* Version of the payload's layout. */
  uint32_t leased_slots_max; /* All clients together. */
  uint32_t device_count;     /* More than one: they share a model, and have the same bytes. */
  uint32_t reserved;
} rp_slot_pool;
/* RP_REFUSED, with what to do, on a TCP connection, and where the daemon has no HBM or lends none
 * of it; RP_BUSY while its engine starts. */
RP_API rp_status rp_get_slot_pool(rp_client* client, rp_slot_pool* pool);

typedef struct rp_slot_device {
  uint32_t struct_bytes; /* In: sizeof(rp_slot_device). */
  uint32_t handle_bytes;
  uint8_t uuid[16]; /* The GPU's, by which it is known in every process. */
  uint8_t handle[RP_SLOT_HANDLE_BYTES_MAX];
  const char* pci_bus_id; /* "0000:1b:00.0". Lives as long as the client. */
} rp_slot_device;
RP_API rp_status rp_get_slot_device(rp_client* client, uint32_t index, rp_slot_device* device);

enum { RP_SLOTS_HBM_ONLY = 1 };      /* Flags of rp_acquire_slots. */
enum { RP_SLOT_REPLAY_DERIVED = 1 }; /* Flags of rp_slot. */

/* The same slot and generation again, on the same connection, are the same bytes. */
typedef struct rp_slot {
  uint32_t slot;
  uint32_t generation;
  uint32_t flags; /* RP_SLOT_*. */
  uint32_t reserved;
} rp_slot;

/* The leading run of the keys that the store holds, in slots that are neither moved nor overwritten
 * until the lease is released; their bytes are whole. Blocks that HBM lacks are copied there first,
 * unless RP_SLOTS_HBM_ONLY: then the run ends before them. A miss is a shorter lease, RP_OK;
 * RP_OUTCOME_BUSY ends a run when no more may be leased now. Release a lease when the kernels that
 * read it are done. What a kernel was reading when the connection ended is worthless. Slots that no
 * lease names may not be looked at, and none be written to: others read them. */
RP_API rp_status rp_acquire_slots(rp_client* client, uint32_t namespace_id, const rp_key* keys,
                                  size_t key_count, uint32_t flags, rp_slot_lease** lease);
/* `lease` may be NULL. */
RP_API void rp_slot_lease_release(rp_slot_lease* lease);
RP_API uint32_t rp_slot_lease_size(const rp_slot_lease* lease);
/* rp_slot_lease_size of them, until the lease is released. */
RP_API const rp_slot* rp_slot_lease_slots(const rp_slot_lease* lease);
/* How many were read from SSD, and copied from DRAM; the rest was in HBM. */
RP_API uint32_t rp_slot_lease_from_ssd(const rp_slot_lease* lease);
RP_API uint32_t rp_slot_lease_from_dram(const rp_slot_lease* lease);
RP_API rp_outcome rp_slot_lease_stopped_by(const rp_slot_lease* lease);

/* ---- Put ---- */

enum { RP_PUT_DURABLE = 1, RP_PUT_REPLAY_DERIVED = 2 };

/* Stores blocks [first_block, first_block + block_count) of the sequence tokens[0, token_count),
 * which has at least (first_block + block_count) * 128 tokens. payloads: block_count pointers, each
 * to payload_bytes of the manifest. Records are built, checksummed and sent; in staging memory when
 * local. flags: RP_PUT_*. RP_PUT_DURABLE returns when the blocks are on SSD and synced. outcomes:
 * block_count, written always. RP_OK when every outcome is RP_OUTCOME_OK or RP_OUTCOME_EXISTS or a
 * refusal by the daemon: look at them. */
RP_API rp_status rp_put(rp_client* client, uint32_t namespace_id, const int32_t* tokens,
                        size_t token_count, uint32_t first_block, uint32_t block_count,
                        const void* const* payloads, uint32_t flags, rp_outcome* outcomes);
/* Stores one payload under an opaque key. */
RP_API rp_status rp_put_opaque(rp_client* client, uint32_t namespace_id, const void* key,
                               size_t key_length, const void* payload, size_t payload_length,
                               uint32_t flags, rp_outcome* outcome);
/* Local connections: memory that rp_put sends without a copy when payloads[i] is rp_staging of a
 * slot below rp_facts.staging_slots. Fill it, then put it: a call of rp_put, rp_put_opaque or
 * rp_window_put may overwrite slots that it does not name. NULL when there is none. */
RP_API void* rp_staging(rp_client* client, uint32_t slot);

/* ---- Windows ---- */

/* A snapshot of window state, 1 byte to 64 MiB. session_id: only the newest few positions of a
 * session are kept; 0: none. *outcome tells whether it was kept. */
RP_API rp_status rp_window_put(rp_client* client, uint32_t namespace_id, const rp_window_key* key,
                               uint64_t session_id, const void* snapshot, size_t snapshot_bytes,
                               rp_outcome* outcome);
/* Copies a snapshot out. *bytes is its size, also with RP_INVALID for a capacity that is too small.
 * RP_NOT_FOUND: rebuild by replay. */
RP_API rp_status rp_window_get(rp_client* client, uint32_t namespace_id, const rp_window_key* key,
                               void* out, size_t capacity, size_t* bytes);

/* ---- Administration ---- */

/* JSON texts; *json lives until the next call on the client. */
RP_API rp_status rp_status_json(rp_client* client, const char** json, size_t* length);
RP_API rp_status rp_explain_json(rp_client* client, uint32_t namespace_id, const int32_t* tokens,
                                 size_t token_count, const char** json, size_t* length);
/* Withdraws blocks from every tier. */
RP_API rp_status rp_evict(rp_client* client, uint32_t namespace_id, const rp_key* keys,
                          size_t key_count, uint64_t* evicted_blocks);

#ifdef __cplusplus
}
#endif

#endif /* REPRISE_H_ */
