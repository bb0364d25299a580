// The echo server as a program: echo_server ADDRESS. Prints where it listens, serves until SIGTERM.
#include <signal.h>
#include <stdio.h>

#include "echo_server.h"

int main(int argc, char **argv)
{
    struct dp_error err = {0};
    struct echo_server server;
    sigset_t terminate;
    int taken = 0;
    sigemptyset(&terminate);
    sigaddset(&terminate, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &terminate, NULL);
    dp_status status = echo_server_start(&server, argc > 1 ? argv[1] : "127.0.0.1:0", &err);
    if (status != DP_OK) {
        fprintf(stderr, "%s\n", err.message);
        return dp_status_exit_code(status);
    }
    printf("%s\n", server.address);
    fflush(stdout);
    sigwait(&terminate, &taken);
    echo_server_stop(&server, 5000);
    return 0;
}
