package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/streamtorch/streamtorch/examples/serve/inference"
)

// guard lets requests pass that bear the token, and so many of one address at the same time.
type guard struct {
	token       string        // "" lets all pass
	most        int           // requests of one address at the same time
	timeout     time.Duration // of a request
	textTimeout time.Duration // of a request for texts: see isText

	mu      sync.Mutex
	clients map[string]int // requests under way, by address
}

// bears reports whether a given token is right. The time that it takes tells nothing of the token.
func (g *guard) bears(token string) bool {
	want, got := sha256.Sum256([]byte(g.token)), sha256.Sum256([]byte(token))
	return g.token == "" || subtle.ConstantTimeCompare(want[:], got[:]) == 1
}

// enter counts a request of a client, if it is not one too many.
func (g *guard) enter(address string, most int) (client string, ok bool) {
	client, _, err := net.SplitHostPort(address)
	if err != nil {
		client = address
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.clients[client] >= most {
		return client, false
	}
	g.clients[client]++
	return client, true
}

func (g *guard) leave(client string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.clients[client]--; g.clients[client] == 0 {
		delete(g.clients, client)
	}
}

const (
	noToken  = "the request does not bear the server's token: send the header Authorization: Bearer TOKEN"
	tooMany  = "this address has as many requests under way as -per-client allows: wait for an answer"
	anyUser  = `Basic realm="streamtorch, any user and the token as the password"`
	healthOf = "/v2/health/"
)

// tokenOf returns the token of a header Authorization. The name of the scheme may be in any case,
// or absent.
func tokenOf(header string) string {
	const scheme = "Bearer "
	if len(header) >= len(scheme) && strings.EqualFold(header[:len(scheme)], scheme) {
		return header[len(scheme):]
	}
	return header
}

// wrap guards HTTP. The time runs from the header on and includes the body. A browser may send the
// token as the password of any user.
func (g *guard) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, healthOf) { // probes bear no token
			next.ServeHTTP(w, r)
			return
		}
		token := tokenOf(r.Header.Get("Authorization"))
		if _, password, basic := r.BasicAuth(); basic {
			token = password
		}
		if !g.bears(token) {
			w.Header().Set("WWW-Authenticate", anyUser)
			deny(w, r, http.StatusUnauthorized, noToken)
			return
		}
		if fromOtherSite(r) {
			deny(w, r, http.StatusForbidden, "a page of another site may not do this")
			return
		}
		client, ok := g.enter(r.RemoteAddr, g.most)
		if !ok {
			w.Header().Set("Retry-After", "1")
			deny(w, r, http.StatusTooManyRequests, tooMany)
			return
		}
		defer g.leave(client)
		timeout := g.timeout
		if isText(r) {
			timeout = g.textTimeout
		}
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		// A body that stops coming ends the request too, just after its context. SetReadDeadline fails only
		// where w has no connection, as in a test.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(timeout + 100*time.Millisecond))
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// fromOtherSite reports whether a browser sends a request that changes something for a page of
// another site. Browsers tell this by one of two headers.
func fromOtherSite(r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return false
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" {
		return site != "same-origin" && site != "none"
	}
	origin := r.Header.Get("Origin")
	from, err := url.Parse(origin)
	return origin != "" && (err != nil || from.Host != r.Host)
}

// isText reports whether a request is one of OpenAI's interface, or of a reranker's.
func isText(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/v1/") || strings.HasSuffix(r.URL.Path, "/rerank")
}

// deny writes an error in the form of the request's interface: OpenAI's, or the protocol's.
func deny(w http.ResponseWriter, r *http.Request, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	var v any = map[string]string{"error": text}
	if isText(r) {
		v = openaiError(status, text)
	}
	_ = json.NewEncoder(w).Encode(v) // an error means that the client is gone
}

// openaiError is an error of the guard as OpenAI writes it.
func openaiError(status int, text string) any {
	kind, code := "server_error", any(nil)
	switch status {
	case http.StatusUnauthorized:
		kind, code = "authentication_error", "invalid_api_key"
	case http.StatusForbidden:
		kind = "permission_error"
	case http.StatusNotFound:
		kind = "not_found_error"
	case http.StatusTooManyRequests:
		kind, code = "rate_limit_exceeded", "rate_limit_exceeded"
	}
	return map[string]any{"error": map[string]any{"message": text, "type": kind, "param": nil, "code": code}}
}

// tap guards gRPC. It sees a call before the message comes, so without the token few messages take
// memory at a time. The time runs from here, also for a message that comes slowly. The length of
// the message is not known here, and grpc-go tells it when the message has been read.
func (g *guard) tap(ctx context.Context, call *tap.Info) (context.Context, error) {
	address, most, timeout := "", g.most, g.timeout
	if p, ok := peer.FromContext(ctx); ok {
		address = p.Addr.String()
	}
	if slices.Contains(probes, call.FullMethodName) { // probes bear no token, and are counted apart
		if host, _, err := net.SplitHostPort(address); err == nil {
			address = host
		}
		address = "probes of " + address
		most, timeout = min(most, mostProbes), min(timeout, probeTimeout)
	} else {
		token := ""
		if values := call.Header.Get("authorization"); len(values) > 0 {
			token = tokenOf(values[0])
		}
		if !g.bears(token) {
			return nil, status.Error(codes.Unauthenticated, noToken)
		}
	}
	client, ok := g.enter(address, most)
	if !ok {
		return nil, status.Error(codes.ResourceExhausted, tooMany)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	context.AfterFunc(ctx, func() { // gRPC ends the context with the call
		cancel()
		g.leave(client)
	})
	return ctx, nil
}

// A client without the token may send long messages too.
const (
	mostProbes   = 8 // of one address at a time
	probeTimeout = 5 * time.Second
)

// probes are the methods without a token.
var probes = []string{
	inference.GRPCInferenceService_ServerLive_FullMethodName,
	inference.GRPCInferenceService_ServerReady_FullMethodName,
	grpc_health_v1.Health_Check_FullMethodName,
}
