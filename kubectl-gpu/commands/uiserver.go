// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

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
	wake, stop := s.board.subscribe()
	defer stop()
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	stream := http.NewResponseController(w)
	var sent *boardState
	for {
		line := ":\n\n" // a comment
		if current := s.board.current(); current != sent {
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
		case <-wake:
		case <-alive.C:
		}
	}
}
