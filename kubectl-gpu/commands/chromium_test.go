// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// browser is a tab of a headless Chromium, controlled by the DevTools protocol.
type browser struct {
	conn    *websocket.Conn
	session string
	id      int
}

// newBrowser starts Chromium. It skips the test if there is none.
func newBrowser(t testing.TB) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no program chromium on PATH: apt-get install chromium")
	}
	// Without a sandbox, because root cannot have one; the page is our own.
	folder := t.TempDir()
	// Its processes write to the folder until the last of them has ended, so the cleanup ends it, not the context.
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, "--headless=new", "--no-sandbox",
		"--disable-gpu", "--remote-debugging-port=0", "--user-data-dir="+folder, "--window-size=1280,900",
		"about:blank")
	cmd.Env = append(os.Environ(), "TMPDIR="+folder)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	ended := make(chan struct{}) // each of its processes has closed stderr
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
		_ = cmd.Wait() // the error is that it was killed
	})
	address, found := "", false
	for !found && lines.Scan() {
		_, address, found = strings.Cut(lines.Text(), "DevTools listening on ")
	}
	go func() {
		defer close(ended)
		for lines.Scan() { // or it blocks
		}
	}()
	if !found {
		t.Fatal("chromium has not started")
	}
	conn, response, err := websocket.DefaultDialer.DialContext(t.Context(), address, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	t.Cleanup(func() { _ = conn.Close() })
	b := &browser{conn: conn}
	target := b.call(t, "Target.createTarget", map[string]any{"url": "about:blank"})
	attached := b.call(t, "Target.attachToTarget", map[string]any{"targetId": target["targetId"], "flatten": true})
	b.session = attached["sessionId"].(string)
	return b
}

// call calls a method of the DevTools protocol and returns its result. It ignores events.
func (b *browser) call(t testing.TB, method string, params map[string]any) map[string]any {
	t.Helper()
	b.id++
	request := map[string]any{"id": b.id, "method": method, "params": params}
	if b.session != "" {
		request["sessionId"] = b.session
	}
	if err := b.conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := b.conn.WriteJSON(request); err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	for {
		var response struct {
			ID     int
			Result map[string]any
			Error  *struct{ Message string }
		}
		if err := b.conn.ReadJSON(&response); err != nil {
			t.Fatalf("%s: %v", method, err)
		}
		if response.ID != b.id {
			continue
		}
		if response.Error != nil {
			t.Fatalf("%s: %s", method, response.Error.Message)
		}
		return response.Result
	}
}

// eval returns the JSON of a JavaScript expression.
func (b *browser) eval(t testing.TB, expression string) string {
	t.Helper()
	result := b.call(t, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true,
		"awaitPromise": true})
	if result["exceptionDetails"] != nil {
		t.Fatalf("%s: %v", expression, result["exceptionDetails"])
	}
	value, err := json.Marshal(result["result"].(map[string]any)["value"])
	if err != nil {
		t.Fatal(err)
	}
	return string(value)
}

// wait waits until an expression has this JSON, and then until that is drawn: the text of a node that is new is empty
// until the browser has seen where it is (content-visibility in page.css).
func (b *browser) wait(t testing.TB, expression, want string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if got = b.eval(t, expression); got == want {
			b.eval(t, "new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(() => drawn(true))))")
			return
		}
	}
	t.Fatalf("%s: got %s, want %s", expression, got, want)
}

// press presses a key.
func (b *browser) press(t testing.TB, key string, code int) {
	t.Helper()
	for _, kind := range []string{"rawKeyDown", "keyUp"} {
		b.call(t, "Input.dispatchKeyEvent", map[string]any{"type": kind, "key": key, "code": key,
			"windowsVirtualKeyCode": code})
	}
}

// picture returns what the tab shows, as PNG.
func (b *browser) picture(t testing.TB) []byte {
	t.Helper()
	picture, err := base64.StdEncoding.DecodeString(b.call(t, "Page.captureScreenshot", nil)["data"].(string))
	if err != nil {
		t.Fatal(err)
	}
	return picture
}

// screenshot writes a picture to the folder of $SCREENSHOTS, for people.
func (b *browser) screenshot(t testing.TB, name string) {
	t.Helper()
	folder := os.Getenv("SCREENSHOTS")
	if folder == "" {
		return
	}
	if err := os.WriteFile(fmt.Sprintf("%s/%s.png", folder, name), b.picture(t), 0o600); err != nil {
		t.Fatal(err)
	}
}

// look makes the tab that wide, and light or dark.
func (b *browser) look(t testing.TB, width int, scheme string) {
	t.Helper()
	b.call(t, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900,
		"deviceScaleFactor": 1, "mobile": false})
	b.call(t, "Emulation.setEmulatedMedia", map[string]any{"features": []any{
		map[string]any{"name": "prefers-color-scheme", "value": scheme}}})
}
