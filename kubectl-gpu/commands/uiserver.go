// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpudra/gpu-dra-driver/internal/cluster"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/read"
	"github.com/gpudra/gpu-dra-driver/internal/cluster/schedule"
)

func uiCommand(p *plugin) *cobra.Command {
	var f filter
	var port uint16
	var plugins string
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Serve a page on this machine that shows the GPUs of the cluster, live.",
		Long: "Serve a page on 127.0.0.1 that shows the GPUs of the cluster, live, until it is interrupted. Nothing " +
			"is exposed in the cluster. The URL has a token against other users of this machine: open it as it is " +
			"printed.",
		Example: "  kubectl gpu ui\n  kubectl gpu ui --port 8081",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return p.ui(cmd.Context(), f, plugins, port) },
	}
	f.addDriver(cmd)
	addPlugins(cmd, &plugins)
	cmd.Flags().Uint16Var(&port, "port", 0, "Port of the page; 0 is a random one.")
	return cmd
}

func (p *plugin) ui(ctx context.Context, f filter, plugins string, port uint16) error {
	if err := p.connect(); err != nil {
		return err
	}
	s := p.read(ctx, cluster.Slices, cluster.Claims, cluster.Nodes)
	b := newBoard(f, p.namespace)
	b.podNamespace = readPendingPods(ctx, p.client, s, p.namespace)
	if err := b.update(s); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go b.follow(ctx, p.client, s)

	of := newReasons(func(ctx context.Context) *cluster.Snapshot {
		return schedule.Read(ctx, read.Reader{Client: p.client, Namespace: p.namespace}, "", nil, nil)
	})
	page := newPageServer(b, of, &usage{client: p.client, plugins: plugins}, listener.Addr().String(), rand.Text())
	server := &http.Server{Handler: page, ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // the error is that of the listener
	defer stop()
	fmt.Fprintf(p.Out, "Open %s\nInterrupt with Ctrl-C.\n", page.url())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// pageFiles are the files of the page.
//
//go:embed page
var pageFiles embed.FS

// keepAlive is how often an idle stream of events sends something, so that a broken connection is noticed.
const keepAlive = 15 * time.Second

// contentSecurityPolicy lets the page load its own files only. It allows no inline script or style.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// pageServer serves the page to those who know the token.
type pageServer struct {
	board   *board
	reasons *reasons
	usage   *usage
	address string // 127.0.0.1:PORT
	token   string
	// path is a secret folder that has the page. Browsers send cookies to all ports of a machine, also to servers of
	// other users; the cookie with the token is for this path only.
	path  string
	files http.Handler
}

const cookieName = "kubectl-gpu"

func newPageServer(b *board, r *reasons, u *usage, address, token string) *pageServer {
	s := &pageServer{board: b, reasons: r, usage: u, address: address, token: token, path: "/" + rand.Text()}
	mux := http.NewServeMux()
	for path, file := range map[string]string{"GET /{$}": "index.html", "GET /page.css": "page.css",
		"GET /page.js": "page.js"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			http.ServeFileFS(w, r, pageFiles, "page/"+file)
		})
	}
	mux.HandleFunc("GET /events", s.events)
	mux.HandleFunc("GET /why", s.why)
	mux.HandleFunc("GET /use", s.use)
	s.files = http.StripPrefix(s.path, mux)
	return s
}

// url returns the URL that logs in.
func (s *pageServer) url() string { return "http://" + s.address + "/?token=" + s.token }

// ServeHTTP implements http.Handler. It refuses requests with another host, against DNS rebinding, and requests without
// the token.
func (s *pageServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", contentSecurityPolicy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	// Browsers leave out the port of HTTP.
	if strings.TrimSuffix(r.Host, ":80") != strings.TrimSuffix(s.address, ":80") {
		http.Error(w, "this host is not the page's: open http://"+s.address, http.StatusMisdirectedRequest)
		return
	}
	if token := r.URL.Query().Get("token"); r.URL.Path == "/" && s.is(token) {
		http.SetCookie(w, &http.Cookie{Name: cookieName, Value: token, Path: s.path + "/", HttpOnly: true,
			SameSite: http.SameSiteLaxMode})
		http.Redirect(w, r, s.path+"/", http.StatusSeeOther) // the token leaves the address bar
		return
	}
	if cookie, err := r.Cookie(cookieName); err != nil || !s.is(cookie.Value) {
		http.Error(w, "the token is missing or wrong: open the URL that kubectl gpu ui has printed",
			http.StatusForbidden)
		return
	}
	s.files.ServeHTTP(w, r)
}

// is compares the token in constant time.
func (s *pageServer) is(token string) bool {
	return subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) == 1
}

// events sends the state, and then every change, as server-sent events.
func (s *pageServer) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	stream := http.NewResponseController(w)
	var sent *boardState
	for {
		line := ":\n\n" // a comment
		current := s.board.current()
		if current != sent {
			message, err := json.Marshal(current.messageSince(sent))
			if err != nil {
				return // what the board has marshals
			}
			line, sent = fmt.Sprintf("data: %s\n\n", message), current
		}
		if _, err := w.Write([]byte(line)); err != nil || stream.Flush() != nil {
			return // the page has gone
		}
		select {
		case <-r.Context().Done():
			return
		case <-current.old:
		case <-alive.C:
		}
	}
}
