#ifndef REPRISE_TESTS_CLIENT_C_FAKE_SERVER_H_
#define REPRISE_TESTS_CLIENT_C_FAKE_SERVER_H_

#ifdef __cplusplus
extern "C" {
#endif

/* A fake daemon for tests in C; one at a time. Returns its address, which lives until the stop. */
const char* c_fake_server_start(int tcp);
void c_fake_server_stop(void);

#ifdef __cplusplus
}
#endif

#endif /* REPRISE_TESTS_CLIENT_C_FAKE_SERVER_H_ */
