/* A server of known pacing: what it sent and when is the truth that clients are judged by.
 *
 * One thread, one epoll loop. A streaming completion gets its first chunk TTFT after the request's
 * last byte came in, and chunk k exactly k steps after that (absolute deadlines, no drift), plus a
 * shift that takes the stream to one of PLACES places within the step over its first SPREAD steps.
 * One place is lockstep, as engines step. Without the shift a client that starts all streams at once would get all chunks in one bunch, of which
 * the server sends the last ones late, and clients would be judged by how they start. Step 0 is a
 * flood that only TCP holds back. Chunks look like vLLM's, about 330 bytes on the wire, one send()
 * each. At SIGTERM the log goes to LOG: for each streaming request the doubles arrival, shift, n,
 * and n stamps taken right before the send (CLOCK_MONOTONIC seconds).
 *
 * usage: truth_server TTFT_S STEP_S TOKENS_PER_CHUNK LOG PLACES CHANGING     CHANGING 1: every chunk
 * has a time stamp and timings of its own. It prints its port, listens on loopback
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define SPREAD 25

struct request {
    double arrival, shift;
    long n, room;
    double *stamps;
    struct request *next;
};

struct conn {
    int fd, dead, waiting, writing; /* waiting: in the heap or the flood; writing: EPOLLOUT is on */
    char *in;
    size_t in_len, in_room;
    int completions, continuous, usage;
    unsigned long id;
    long wanted, made, index;
    double first;
    char *pending;
    size_t pending_len, pending_room;
    struct request *log;
};

static double ttft, step;
static long per_chunk, places;
static int changing;
static int poll_fd, timer_fd;
static struct request *first_request, **last_request = &first_request;
static volatile sig_atomic_t stopping;

static struct { double at; struct conn *conn; } *heap;
static size_t heap_len, heap_room;
static struct conn **flood;
static size_t flood_len, flood_room;

static const char *words[] = {" the", " wind", " over", " a", " river", " then", " came", " and",
                              " of", " light", " in", " stone", " fell", " near", " to", " sea"};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void *grown(void *old, size_t need, size_t *room, size_t size) {
    if (need <= *room) return old;
    *room = need < 64 ? 64 : need * 2;
    void *grown = realloc(old, *room * size);
    if (!grown) abort();
    return grown;
}

static void heap_push(double at, struct conn *conn) {
    heap = grown(heap, heap_len + 1, &heap_room, sizeof *heap);
    size_t i = heap_len++;
    while (i && heap[(i - 1) / 2].at > at) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i].at = at, heap[i].conn = conn;
    conn->waiting = 1;
}

static struct conn *heap_pop(void) {
    struct conn *top = heap[0].conn;
    double at = heap[--heap_len].at;
    struct conn *conn = heap[heap_len].conn;
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= heap_len) break;
        if (child + 1 < heap_len && heap[child + 1].at < heap[child].at) child++;
        if (heap[child].at >= at) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i].at = at, heap[i].conn = conn;
    top->waiting = 0;
    return top;
}

static void flood_add(struct conn *conn) {
    flood = grown(flood, flood_len + 1, &flood_room, sizeof *flood);
    flood[flood_len++] = conn;
    conn->waiting = 1;
}

static void release(struct conn *conn) {
    free(conn->in);
    free(conn->pending);
    free(conn);
}

static void drop(struct conn *conn) {
    if (conn->dead) return;
    close(conn->fd);
    conn->dead = 1;
    if (!conn->waiting) release(conn);
}

static void watch(struct conn *conn, int writing) {
    struct epoll_event event = {EPOLLIN | (writing ? EPOLLOUT : 0), {.ptr = conn}};
    if (writing != conn->writing) epoll_ctl(poll_fd, EPOLL_CTL_MOD, conn->fd, &event);
    conn->writing = writing;
}

/* Whether all of it is out; what is not waits for the socket. */
static int put(struct conn *conn, const char *data, size_t len) {
    if (!conn->pending_len) {
        ssize_t sent = send(conn->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) sent = 0; /* a broken connection shows when it is read */
        data += sent, len -= sent;
    }
    if (len) {
        conn->pending = grown(conn->pending, conn->pending_len + len, &conn->pending_room, 1);
        memcpy(conn->pending + conn->pending_len, data, len);
        conn->pending_len += len;
        watch(conn, 1);
    }
    return !conn->pending_len;
}

static size_t event(char *out, const char *json) {
    size_t len = strlen(json) + 8;
    return sprintf(out, "%zx\r\ndata: %s\n\n\r\n", len, json);
}

static size_t chunk(struct conn *conn, char *out, const char *delta, const char *finish, int usage) {
    char json[1024], *at = json;
    at += sprintf(at, "{\"id\":\"%s-8d1c2f5be07a4b6c9a3de5f6%08lx\",\"object\":\"%s\","
                  "\"created\":%ld,\"model\":\"truth\",\"choices\":[",
                  conn->completions ? "cmpl" : "chatcmpl", conn->id,
                  conn->completions ? "text_completion" : "chat.completion.chunk",
                  1780000000 + (changing ? conn->made : 0));
    if (delta)
        at += sprintf(at, "{\"index\":0,%s,\"logprobs\":null,\"finish_reason\":%s,"
                      "\"token_ids\":null}", delta, finish);
    at += sprintf(at, "]");
    if (usage)
        at += sprintf(at, ",\"usage\":{\"prompt_tokens\":128,\"total_tokens\":%ld,"
                      "\"completion_tokens\":%ld}", 128 + conn->made, conn->made);
    if (changing)
        at += sprintf(at, ",\"timings\":{\"predicted_n\":%ld,\"predicted_ms\":%.3f}", conn->made,
                      fmod(now(), 1000) * 1e3);
    strcpy(at, "}");
    return event(out, json);
}

static double due(struct conn *conn) {
    double moved = conn->index < SPREAD ? (double)conn->index / SPREAD : 1;
    return conn->first + conn->index * step + moved * conn->log->shift;
}

/* From a start to the place of request n within the step. */
static double shift_of(unsigned long n, double start) {
    if (step == 0) return 0;
    double place = n % places * step / places;
    return fmod(place - fmod(start, step) + step, step);
}

/* The next chunk of a stream. */
static void advance(struct conn *conn) {
    char out[8192], delta[2048], *text = delta;
    size_t len = 0;
    long before = conn->made;
    if (!conn->index && !conn->completions)
        len = chunk(conn, out, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}", "null",
                    conn->continuous);
    conn->made += per_chunk;
    if (conn->made > conn->wanted) conn->made = conn->wanted;
    text += sprintf(text, conn->completions ? "\"text\":\"" : "\"delta\":{\"content\":\"");
    for (long i = before; i < conn->made; i++) text += sprintf(text, "%s", words[(i * 7 + i / 16) % 16]);
    sprintf(text, conn->completions ? "\"" : "\"}");
    int last = conn->made == conn->wanted;
    len += chunk(conn, out + len, delta, last ? "\"length\"" : "null", conn->continuous);
    if (last) {
        if (conn->usage) len += chunk(conn, out + len, NULL, NULL, 1);
        len += event(out + len, "[DONE]");
        len += sprintf(out + len, "0\r\n\r\n");
    }
    struct request *log = conn->log;
    log->stamps = grown(log->stamps, log->n + 1, (size_t *)&log->room, sizeof(double));
    log->stamps[log->n++] = now();
    conn->index++;
    int out_now = put(conn, out, len);
    if (last) return;
    if (step > 0) heap_push(due(conn), conn);
    else if (out_now) flood_add(conn);
}

static long number(const char *body, const char *key, long otherwise) {
    const char *at = strstr(body, key);
    return at && (at = strchr(at, ':')) && strspn(at + 1, " 0123456789") && atol(at + 1) > 0
        ? atol(at + 1) : otherwise;
}

static int is_true(const char *body, const char *key) {
    const char *at = strstr(body, key);
    return at && (at = strchr(at, ':')) && !strncmp(at + 1 + strspn(at + 1, " "), "true", 4);
}

static void respond(struct conn *conn, int status, const char *json) {
    char out[1024];
    put(conn, out, sprintf(out, "HTTP/1.1 %d X\r\nContent-Type: application/json\r\n"
                           "Content-Length: %zu\r\n\r\n%s", status, strlen(json), json));
}

/* Words for a client that makes its prompts of a book. */
static void respond_text(struct conn *conn) {
    static char text[65536], head[256];
    size_t len = 0;
    for (int i = 0; len < sizeof text - 16; i++) len += sprintf(text + len, "%s", words[i * 7 % 16]);
    put(conn, head, sprintf(head, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
                            "Content-Length: %zu\r\n\r\n", len));
    put(conn, text, len);
}

static void serve(struct conn *conn, const char *head, const char *body, double arrival) {
    if (strncmp(head, "POST", 4)) {
        int models = strstr(head, " /v1/models") != NULL;
        if (strstr(head, " /metrics")) respond(conn, 404, "{}");
        else if (strstr(head, " /book")) respond_text(conn);
        else respond(conn, 200, models ? "{\"object\":\"list\",\"data\":[{\"id\":\"truth\",\"object\":"
                     "\"model\",\"max_model_len\":131072}]}" : "{}");
        return;
    }
    conn->completions = strstr(head, "/chat/") == NULL;
    conn->wanted = number(body, "\"max_completion_tokens\"", number(body, "\"max_tokens\"", 16));
    if (!is_true(body, "\"stream\"")) {
        respond(conn, 200, "{\"id\":\"x\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"truth\","
                "\"choices\":[{\"index\":0,\"text\":\" the\",\"message\":{\"role\":\"assistant\",\"content\":"
                "\" the\"},\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":128,"
                "\"completion_tokens\":1,\"total_tokens\":129}}");
        return;
    }
    conn->usage = is_true(body, "\"include_usage\"");
    conn->continuous = is_true(body, "\"continuous_usage_stats\"");
    static unsigned long requests;
    conn->id = ++requests * 2654435761UL & 0xffffffff;
    conn->made = conn->index = 0;
    conn->first = arrival + ttft;
    *last_request = conn->log = calloc(1, sizeof *conn->log);
    last_request = &conn->log->next;
    conn->log->arrival = arrival;
    conn->log->shift = shift_of(requests, conn->first);
    const char *start = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                        "Transfer-Encoding: chunked\r\n\r\n";
    put(conn, start, strlen(start));
    heap_push(conn->first, conn);
}

/* When the kernel had what was just read, on the clock of now(). In a burst that is well before this
   process comes to read it, and clients see that wait. */
static double received(struct msghdr *message) {
    struct cmsghdr *note = CMSG_FIRSTHDR(message);
    if (!note || note->cmsg_type != SCM_TIMESTAMPNS) return now();
    struct timespec at, wall;
    memcpy(&at, CMSG_DATA(note), sizeof at);
    clock_gettime(CLOCK_REALTIME, &wall);
    return now() - ((wall.tv_sec - at.tv_sec) + 1e-9 * (wall.tv_nsec - at.tv_nsec));
}

static void receive(struct conn *conn) {
    double arrival = 0;
    for (;;) {
        conn->in = grown(conn->in, conn->in_len + 65536, &conn->in_room, 1);
        char notes[64];
        struct iovec room = {conn->in + conn->in_len, conn->in_room - conn->in_len - 1};
        struct msghdr message = {.msg_iov = &room, .msg_iovlen = 1, .msg_control = notes,
                                 .msg_controllen = sizeof notes};
        ssize_t got = recvmsg(conn->fd, &message, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
            drop(conn);
            return;
        }
        if (got < 0) break;
        conn->in_len += got;
        arrival = received(&message);
    }
    conn->in[conn->in_len] = 0;
    char *end = strstr(conn->in, "\r\n\r\n");
    if (!end) return;
    char *body = end + 4, *field = strcasestr(conn->in, "\r\ncontent-length:");
    size_t length = field && field < end ? strtoul(field + 17, NULL, 10) : 0;
    if (conn->in_len < (size_t)(body - conn->in) + length) return;
    *end = 0;
    serve(conn, conn->in, body, arrival);
    conn->in_len = 0; /* nobody sends two requests at once */
}

static void flush(struct conn *conn) {
    ssize_t sent = send(conn->fd, conn->pending, conn->pending_len, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) return;
    conn->pending_len -= sent;
    memmove(conn->pending, conn->pending + sent, conn->pending_len);
    if (conn->pending_len) return;
    watch(conn, 0);
    if (step == 0 && conn->log && conn->index && conn->made < conn->wanted && !conn->waiting)
        flood_add(conn);
}

static void accept_all(int listener) {
    int fd, on = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
        if (step == 0) { /* what a socket hides is in no count of the client's */
            int small = 16384;
            setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
        }
        struct conn *conn = calloc(1, sizeof *conn);
        conn->fd = fd;
        struct epoll_event event = {EPOLLIN, {.ptr = conn}};
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);
    }
}

static void send_due(void) {
    while (heap_len && heap[0].at <= now()) {
        struct conn *conn = heap_pop();
        if (conn->dead) release(conn);
        else advance(conn);
    }
    size_t turn = flood_len;
    struct conn **round = flood;
    flood = NULL, flood_len = flood_room = 0;
    for (size_t i = 0; i < turn; i++) {
        round[i]->waiting = 0;
        if (round[i]->dead) release(round[i]);
        else advance(round[i]);
    }
    free(round);
}

static void set_timer(void) {
    struct itimerspec at = {0};
    if (heap_len) {
        at.it_value.tv_sec = (time_t)heap[0].at;
        at.it_value.tv_nsec = (long)((heap[0].at - at.it_value.tv_sec) * 1e9);
    }
    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

static void stop(int signal) { (void)signal, stopping = 1; }

int main(int argc, char **argv) {
    if (argc != 7) return 2;
    ttft = atof(argv[1]), step = atof(argv[2]), per_chunk = atol(argv[3]);
    places = atol(argv[5]), changing = atol(argv[6]);
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    if (bind(listener, (void *)&address, size) || listen(listener, 4096)) return 1;
    getsockname(listener, (void *)&address, &size);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event events[256] = {{EPOLLIN, {.ptr = &listener}}};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, events);
    events->data.ptr = &timer_fd;
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, timer_fd, events);
    while (!stopping) {
        set_timer();
        int n = epoll_wait(poll_fd, events, 256, flood_len ? 0 : -1);
        for (int i = 0; i < n; i++) {
            void *what = events[i].data.ptr;
            uint64_t expired;
            if (what == &listener) accept_all(listener);
            else if (what == &timer_fd) { if (read(timer_fd, &expired, 8) < 0) continue; }
            else if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(what);
            else flush(what);
        }
        send_due();
    }
    FILE *log = fopen(argv[4], "wb");
    if (!log) return 1;
    for (struct request *r = first_request; r; r = r->next) {
        double head[3] = {r->arrival, r->shift, (double)r->n};
        fwrite(head, sizeof *head, 3, log);
        fwrite(r->stamps, sizeof(double), r->n, log);
    }
    return fclose(log) != 0;
}
