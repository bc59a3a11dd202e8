/* The C interface from C, against a fake daemon: one run over a local connection and one over TCP.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/reprise.h"
#include "tests/client/c_fake_server.h"

#define PAYLOAD_BYTES 27136
#define BLOCKS 5
#define TOKENS (BLOCKS * RP_BLOCK_TOKENS + 30)

static int failures = 0;

static void Expect(int condition, const char* text, int line) {
  if (condition) return;
  ++failures;
  fprintf(stderr, "c_api_test.c:%d: expected %s\n", line, text);
}
#define EXPECT(condition) Expect((condition) != 0, #condition, __LINE__)

struct Rig {
  rp_client* client;
  uint32_t namespace_id;
  int32_t tokens[TOKENS];
  rp_key keys[BLOCKS];
  uint8_t* payloads[BLOCKS];
};

static void Connect(struct Rig* rig, const char* address) {
  rp_options options;
  memset(&options, 0, sizeof(options));
  options.struct_bytes = sizeof(options);
  options.address = address;
  options.address_length = strlen(address);
  options.staging_slots = 2;
  options.deadline_us = 5000000;
  const char* error = "";
  EXPECT(rp_connect(&options, &rig->client, &error) == RP_OK);
  if (rig->client == NULL) {
    fprintf(stderr, "rp_connect: %s\n", error);
    exit(1);
  }
}

static void OpenAndFill(struct Rig* rig) {
  rp_manifest manifest;
  uint8_t hash[32] = {0};
  uint32_t again = 99;
  EXPECT(rp_manifest_init(&manifest, "nano", 4) == RP_OK);
  EXPECT(rp_open_namespace(rig->client, &manifest, &rig->namespace_id, hash) == RP_OK);
  EXPECT(rp_open_namespace(rig->client, &manifest, &again, NULL) == RP_OK);
  EXPECT(again == rig->namespace_id);
  EXPECT(hash[0] != 0 || hash[1] != 0);
  for (int i = 0; i < TOKENS; ++i) rig->tokens[i] = (i * 7919) % 65536;
  for (int i = 0; i < BLOCKS; ++i) {
    rig->payloads[i] = malloc(PAYLOAD_BYTES);
    for (int k = 0; k < PAYLOAD_BYTES; ++k) rig->payloads[i][k] = (uint8_t)(k * 31 + i);
  }
  size_t count = 0;
  EXPECT(rp_block_hashes(rig->client, rig->namespace_id, rig->tokens, TOKENS, NULL, 0, &count) ==
         RP_OK);
  EXPECT(count == BLOCKS);
  EXPECT(rp_block_hashes(rig->client, rig->namespace_id, rig->tokens, TOKENS, rig->keys, BLOCKS,
                         &count) == RP_OK);
}

static void CheckFacts(struct Rig* rig, int local) {
  rp_facts facts;
  memset(&facts, 0, sizeof(facts));
  EXPECT(rp_get_facts(rig->client, &facts) == RP_INVALID);
  facts.struct_bytes = sizeof(facts);
  EXPECT(rp_get_facts(rig->client, &facts) == RP_OK);
  EXPECT(facts.record_bytes == 28672);
  EXPECT(facts.local == (uint32_t)local);
  EXPECT(facts.staging_slots == (local ? 2u : 0u));
  EXPECT(strcmp(facts.model, "nano") == 0);
  EXPECT(strcmp(facts.transport, local ? "shared memory" : "tcp") == 0);
  EXPECT(facts.transport_note != NULL);
  EXPECT((rp_staging(rig->client, 0) != NULL) == local);
  EXPECT(rp_staging(rig->client, 2) == NULL);
}

static void CheckPut(struct Rig* rig, int local) {
  const void* payloads[BLOCKS];
  rp_outcome outcomes[BLOCKS];
  for (int i = 0; i < BLOCKS; ++i) payloads[i] = rig->payloads[i];
  /* The first two blocks, then the rest, as an engine would. */
  EXPECT(rp_put(rig->client, rig->namespace_id, rig->tokens, TOKENS, 0, 2, payloads, 0, outcomes) ==
         RP_OK);
  if (local) { /* One payload lies in staging already. */
    memcpy(rp_staging(rig->client, 1), rig->payloads[3], PAYLOAD_BYTES);
    payloads[3] = rp_staging(rig->client, 1);
  }
  EXPECT(rp_put(rig->client, rig->namespace_id, rig->tokens, TOKENS, 2, 3, payloads + 2,
                RP_PUT_DURABLE | RP_PUT_REPLAY_DERIVED, outcomes + 2) == RP_OK);
  for (int i = 0; i < BLOCKS; ++i) EXPECT(outcomes[i] == RP_OUTCOME_OK);
  EXPECT(rp_put(rig->client, rig->namespace_id, rig->tokens, TOKENS, 0, 1,
                (const void* const*)rig->payloads, 0, outcomes) == RP_OK);
  EXPECT(outcomes[0] == RP_OUTCOME_EXISTS);
  EXPECT(rp_put(rig->client, rig->namespace_id, rig->tokens, 5 * 128 - 1, 0, 5,
                (const void* const*)rig->payloads, 0, outcomes) == RP_INVALID);
  EXPECT(strstr(rp_last_error(rig->client), "639 tokens") != NULL);
  EXPECT(rp_put(rig->client, rig->namespace_id, rig->tokens, TOKENS, 0, 1,
                (const void* const*)rig->payloads, 64, outcomes) == RP_INVALID);
}

static void CheckLoad(struct Rig* rig) {
  rp_verdict verdict;
  uint8_t tiers[BLOCKS] = {0};
  EXPECT(rp_lookup(rig->client, rig->namespace_id, rig->keys, BLOCKS, NULL, 0, &verdict, tiers) ==
         RP_OK);
  EXPECT(verdict.hit_blocks == BLOCKS && verdict.hit_tokens == BLOCKS * RP_BLOCK_TOKENS);
  EXPECT(tiers[BLOCKS - 1] == RP_TIER_DRAM);

  rp_lease* lease = NULL;
  EXPECT(rp_acquire(rig->client, rig->namespace_id, rig->keys, BLOCKS, &lease) == RP_OK);
  EXPECT(rp_lease_size(lease) == BLOCKS);
  EXPECT(rp_lease_stopped_by(lease) == RP_OUTCOME_OK);
  EXPECT(rp_lease_from_ssd(lease) >= 1);
  uint8_t* copy = malloc(PAYLOAD_BYTES);
  for (uint32_t i = 0; i < BLOCKS; ++i) {
    size_t bytes = 0;
    const void* payload = rp_lease_payload(lease, i, &bytes);
    EXPECT(bytes == PAYLOAD_BYTES && memcmp(payload, rig->payloads[i], bytes) == 0);
    EXPECT(rp_lease_record(lease, i, &bytes) == payload && bytes == 28672);
    EXPECT(rp_lease_tokens_match(lease, i, rig->tokens + i * RP_BLOCK_TOKENS));
    EXPECT(!rp_lease_tokens_match(lease, i, rig->tokens + i * RP_BLOCK_TOKENS + 1));
    memset(copy, 0, PAYLOAD_BYTES);
    EXPECT(rp_lease_copy_payload(lease, i, copy, PAYLOAD_BYTES, &bytes) == RP_OK);
    EXPECT(memcmp(copy, rig->payloads[i], PAYLOAD_BYTES) == 0);
    EXPECT(rp_lease_copy_payload(lease, i, copy, PAYLOAD_BYTES - 1, &bytes) == RP_INVALID);
  }
  EXPECT(rp_lease_payload(lease, BLOCKS, NULL) == NULL);
  EXPECT(!rp_lease_tokens_match(lease, BLOCKS, rig->tokens));
  free(copy);
  rp_lease_release(lease);
  rp_lease_release(NULL);

  rp_key missing;
  memset(&missing, 1, sizeof(missing));
  EXPECT(rp_acquire(rig->client, rig->namespace_id, &missing, 1, &lease) == RP_OK);
  EXPECT(rp_lease_size(lease) == 0 && rp_lease_stopped_by(lease) == RP_OUTCOME_NOT_FOUND);
  rp_lease_release(lease);
}

static void CheckFetch(struct Rig* rig) {
  rp_facts facts;
  facts.struct_bytes = sizeof(facts);
  EXPECT(rp_get_facts(rig->client, &facts) == RP_OK);
  const size_t record = facts.record_bytes;
  const size_t bytes = (BLOCKS + 1) * record;
  unsigned char* memory = malloc(bytes);
  rp_landing* landing = NULL;
  rp_landed landed;
  EXPECT(rp_landing_register(rig->client, NULL, bytes, &landing) == RP_INVALID);
  EXPECT(rp_landing_register(rig->client, memory, bytes, &landing) == RP_OK);
  EXPECT(rp_fetch(rig->client, rig->namespace_id, rig->keys, BLOCKS, landing, record, &landed) ==
         RP_OK);
  EXPECT(landed.records == BLOCKS && landed.stopped_by == RP_OUTCOME_OK);
  for (uint32_t i = 0; i < BLOCKS; ++i) {
    EXPECT(memcmp(memory + (i + 1) * record, rig->payloads[i], PAYLOAD_BYTES) == 0);
  }
  /* Beyond the end of the landing. */
  EXPECT(rp_fetch(rig->client, rig->namespace_id, rig->keys, BLOCKS, landing, bytes - record,
                  &landed) == RP_INVALID);
  EXPECT(landed.records == 0);
  rp_landing_release(landing);
  rp_landing_release(NULL);
  free(memory);
  /* No RDMA here: a dma-buf is refused, and why is said. */
  EXPECT(rp_landing_register_dmabuf(rig->client, -1, 0, record, &landing) == RP_REFUSED);
  EXPECT(landing == NULL && strlen(rp_last_error(rig->client)) > 0);
}

static void CheckSlots(struct Rig* rig, int local) {
  rp_slot_pool pool;
  rp_slot_device device;
  rp_slot_lease* lease = NULL;
  memset(&pool, 0, sizeof(pool));
  memset(&device, 0, sizeof(device));
  EXPECT(rp_get_slot_pool(rig->client, &pool) == RP_INVALID);
  pool.struct_bytes = sizeof(pool);
  device.struct_bytes = sizeof(device);
  if (!local) {
    EXPECT(rp_get_slot_pool(rig->client, &pool) == RP_REFUSED);
    EXPECT(strstr(rp_last_error(rig->client), "unix:") != NULL);
    EXPECT(rp_acquire_slots(rig->client, rig->namespace_id, rig->keys, BLOCKS, 0, &lease) ==
           RP_REFUSED);
    EXPECT(lease == NULL);
    return;
  }
  EXPECT(rp_get_slot_pool(rig->client, &pool) == RP_OK);
  EXPECT(pool.handle_kind == RP_SLOT_HANDLE_CUDA_IPC && pool.device_count == 1);
  EXPECT(pool.slot_bytes == PAYLOAD_BYTES && pool.stride_bytes == PAYLOAD_BYTES + 256);
  EXPECT(rp_get_slot_device(rig->client, 1, &device) == RP_INVALID);
  EXPECT(rp_get_slot_device(rig->client, 0, &device) == RP_OK);
  EXPECT(device.handle_bytes == 64 && device.handle[63] == 'h' && device.uuid[15] == 'u');
  EXPECT(strcmp(device.pci_bus_id, "0000:1b:00.0") == 0);
  EXPECT(rp_acquire_slots(rig->client, rig->namespace_id, rig->keys, BLOCKS, 8, &lease) ==
         RP_INVALID);
  EXPECT(rp_acquire_slots(rig->client, rig->namespace_id, rig->keys, BLOCKS, 0, &lease) == RP_OK);
  EXPECT(rp_slot_lease_size(lease) == BLOCKS);
  EXPECT(rp_slot_lease_stopped_by(lease) == RP_OUTCOME_OK);
  EXPECT(rp_slot_lease_from_ssd(lease) == 0 && rp_slot_lease_from_dram(lease) == BLOCKS / 2);
  const rp_slot* slots = rp_slot_lease_slots(lease);
  EXPECT(slots[0].slot < pool.slots && slots[0].generation == 5 && slots[0].flags == 0);
  EXPECT(slots[1].flags == RP_SLOT_REPLAY_DERIVED);
  rp_slot_lease_release(lease);
  EXPECT(rp_acquire_slots(rig->client, rig->namespace_id, rig->keys, BLOCKS, RP_SLOTS_HBM_ONLY,
                          &lease) == RP_OK);
  EXPECT(rp_slot_lease_size(lease) == 1);
  rp_slot_lease_release(lease);
  rp_slot_lease_release(NULL);
  EXPECT(rp_slot_lease_size(NULL) == 0 && rp_slot_lease_slots(NULL) == NULL);
}

static void CheckWindows(struct Rig* rig) {
  rp_window_key key;
  rp_outcome outcome = 255;
  char out[100];
  size_t bytes = 0;
  EXPECT(rp_prefix_window_key(rig->client, rig->namespace_id, rig->tokens, TOKENS, TOKENS, &key) ==
         RP_OK);
  EXPECT(key.position == TOKENS);
  EXPECT(rp_prefix_window_key(rig->client, rig->namespace_id, rig->tokens, TOKENS, TOKENS + 1,
                              &key) == RP_INVALID);
  EXPECT(rp_window_get(rig->client, rig->namespace_id, &key, out, sizeof(out), &bytes) ==
         RP_NOT_FOUND);
  EXPECT(rp_window_put(rig->client, rig->namespace_id, &key, 42, "window state", 12, &outcome) ==
         RP_OK);
  EXPECT(outcome == RP_OUTCOME_OK);
  EXPECT(rp_window_get(rig->client, rig->namespace_id, &key, out, 11, &bytes) == RP_INVALID);
  EXPECT(bytes == 12);
  EXPECT(rp_window_get(rig->client, rig->namespace_id, &key, out, sizeof(out), &bytes) == RP_OK);
  EXPECT(bytes == 12 && memcmp(out, "window state", 12) == 0);
  rp_verdict verdict;
  rp_window_key windows[2] = {key, key};
  windows[0].position = 1;
  EXPECT(rp_lookup(rig->client, rig->namespace_id, rig->keys, BLOCKS, windows, 2, &verdict, NULL) ==
         RP_OK);
  EXPECT(verdict.window_state == RP_WINDOW_EXACT && verdict.window_index == 1);
  EXPECT(verdict.hit_tokens == TOKENS && verdict.window_bytes == 12);
}

static void CheckOpaque(struct Rig* rig) {
  rp_manifest manifest;
  uint32_t id = 0;
  rp_key key;
  rp_outcome outcome = 255;
  rp_lease* lease = NULL;
  size_t bytes = 0;
  rp_manifest_init(&manifest, NULL, 0);
  manifest.opaque = 1;
  EXPECT(rp_open_namespace(rig->client, &manifest, &id, NULL) == RP_INVALID);
  EXPECT(strstr(rp_last_error(rig->client), "payload_bytes") != NULL);
  manifest.payload_bytes = PAYLOAD_BYTES;
  manifest.engine.data = "vllm";
  manifest.engine.length = 4;
  EXPECT(rp_open_namespace(rig->client, &manifest, &id, NULL) == RP_OK);
  EXPECT(id != rig->namespace_id);
  EXPECT(rp_opaque_key(rig->client, id, "", 0, &key) == RP_INVALID);
  EXPECT(rp_opaque_key(rig->client, id, "block-1", 7, &key) == RP_OK);
  EXPECT(rp_put_opaque(rig->client, id, "block-1", 7, "payload!", 8, 0, &outcome) == RP_OK);
  EXPECT(outcome == RP_OUTCOME_OK);
  EXPECT(rp_acquire(rig->client, id, &key, 1, &lease) == RP_OK);
  EXPECT(rp_lease_size(lease) == 1);
  const void* payload = rp_lease_payload(lease, 0, &bytes);
  EXPECT(bytes == 8 && memcmp(payload, "payload!", 8) == 0);
  rp_lease_release(lease);
}

static void CheckAdministration(struct Rig* rig) {
  const char* json = NULL;
  size_t length = 0;
  uint64_t evicted = 0;
  EXPECT(rp_status_json(rig->client, &json, &length) == RP_OK);
  EXPECT(strlen(json) == length && strstr(json, "0.0-fake") != NULL);
  EXPECT(rp_explain_json(rig->client, rig->namespace_id, rig->tokens, TOKENS, &json, &length) ==
         RP_OK);
  EXPECT(strstr(json, "\"reason\": \"never_stored\"") != NULL);
  EXPECT(rp_evict(rig->client, rig->namespace_id, rig->keys, 2, &evicted) == RP_OK);
  EXPECT(evicted == 2);
}

static void CheckErrors(struct Rig* rig) {
  rp_client* none = NULL;
  const char* error = NULL;
  rp_options options;
  memset(&options, 0, sizeof(options));
  EXPECT(rp_connect(&options, &none, &error) == RP_INVALID && none == NULL);
  EXPECT(strstr(error, "struct_bytes") != NULL);
  options.struct_bytes = sizeof(options);
  options.transport = 9;
  EXPECT(rp_connect(&options, &none, &error) == RP_INVALID);
  EXPECT(strstr(error, "RP_TRANSPORT_") != NULL);
  options.transport = RP_TRANSPORT_AUTO;
  options.address = "unix:/nonexistent";
  options.address_length = strlen(options.address);
  EXPECT(rp_connect(&options, &none, &error) == RP_UNAVAILABLE && none == NULL);
  EXPECT(strstr(error, "reprised") != NULL);
  EXPECT(rp_connect(NULL, NULL, NULL) == RP_INVALID);
  EXPECT(strcmp(rp_status_name(RP_REFUSED), "refused") == 0);
  EXPECT(strcmp(rp_status_name((rp_status)77), "unknown") == 0);
  EXPECT(strcmp(rp_outcome_name(RP_OUTCOME_EXISTS), "exists") == 0);
  EXPECT(strcmp(rp_outcome_name(200), "unknown") == 0);
  EXPECT(rp_abi_version() == RP_ABI_VERSION);
  rp_verdict verdict;
  EXPECT(rp_lookup(rig->client, 77, rig->keys, 1, NULL, 0, &verdict, NULL) == RP_INVALID);
  EXPECT(strstr(rp_last_error(rig->client), "77") != NULL);
  EXPECT(rp_lookup(rig->client, rig->namespace_id, NULL, 1, NULL, 0, &verdict, NULL) == RP_INVALID);
  EXPECT(rp_lookup(NULL, 0, NULL, 0, NULL, 0, &verdict, NULL) == RP_INVALID);
  rp_set_deadline(rig->client, 0);
  EXPECT(rp_lookup(rig->client, rig->namespace_id, rig->keys, 1, NULL, 0, &verdict, NULL) ==
         RP_TIMEOUT);
  rp_close(NULL);
}

static void RunAll(int tcp) {
  struct Rig rig;
  memset(&rig, 0, sizeof(rig));
  const char* address = c_fake_server_start(tcp);
  Connect(&rig, address);
  CheckFacts(&rig, !tcp);
  OpenAndFill(&rig);
  CheckPut(&rig, !tcp);
  CheckLoad(&rig);
  CheckFetch(&rig);
  CheckSlots(&rig, !tcp);
  CheckWindows(&rig);
  CheckOpaque(&rig);
  CheckAdministration(&rig);
  CheckErrors(&rig);
  rp_close(rig.client);
  for (int i = 0; i < BLOCKS; ++i) free(rig.payloads[i]);
  c_fake_server_stop();
}

int main(void) {
  RunAll(0);
  RunAll(1);
  if (failures == 0) puts("c_api_test: passed");
  return failures == 0 ? 0 : 1;
}
