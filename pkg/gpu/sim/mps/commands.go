// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// result is what the daemon answers to a command.
type result struct {
	Text   string
	Failed bool
}

// serveCommands answers commands, one a line.
func (d *daemon) serveCommands(conn net.Conn) {
	d.logf("NEW UI")
	defer d.logf("UI closed")
	out := json.NewEncoder(conn)
	for in := bufio.NewScanner(conn); in.Scan(); {
		d.logf("Cmd:%s", in.Text())
		text, err := d.command(strings.Fields(in.Text()))
		r := result{Text: text}
		if err != nil {
			r = result{Text: err.Error() + "\n", Failed: true}
		}
		if out.Encode(r) != nil {
			return
		}
	}
}

// verb is a command: how many arguments it has and what it does.
type verb struct {
	usage    string
	min, max int
	do       func(d *daemon, args []string) (string, error)
}

var verbs = map[string]verb{
	"get_server_list":                      {"", 0, 0, (*daemon).serverList},
	"get_server_status":                    {"PID", 1, 1, (*daemon).serverStatus},
	"start_server":                         {"-uid UID", 2, 2, (*daemon).startServerCommand},
	"shutdown_server":                      {"PID [-f]", 1, 2, (*daemon).shutdownServer},
	"get_client_list":                      {"PID", 1, 1, (*daemon).clientList},
	"get_device_client_list":               {"[PID]", 0, 1, (*daemon).deviceClientList},
	"get_default_active_thread_percentage": {"", 0, 0, (*daemon).defaultThreads},
	"set_default_active_thread_percentage": {"PERCENTAGE", 1, 1, (*daemon).setDefaultThreads},
	"get_active_thread_percentage":         {"PID", 1, 1, (*daemon).threads},
	"set_active_thread_percentage":         {"PID PERCENTAGE", 2, 2, (*daemon).setThreads},
	"get_default_device_pinned_mem_limit":  {"DEVICE", 1, 1, (*daemon).defaultMemory},
	"set_default_device_pinned_mem_limit":  {"DEVICE SIZE", 2, 2, (*daemon).setDefaultMemory},
	"get_device_pinned_mem_limit":          {"PID DEVICE", 2, 2, (*daemon).memory},
	"set_device_pinned_mem_limit":          {"PID DEVICE SIZE", 3, 3, (*daemon).setMemory},
	"quit":                                 {"[-t TIMEOUT]", 0, 2, (*daemon).quit},
}

func (d *daemon) command(words []string) (string, error) {
	if len(words) == 0 {
		return "", nil
	}
	v, ok := verbs[words[0]]
	switch args := words[1:]; {
	case !ok:
		return "", fmt.Errorf("Invalid command: %s", words[0]) //nolint:revive,staticcheck // as the real program
	case len(args) < v.min || len(args) > v.max:
		return "", fmt.Errorf("Invalid arguments: want %s %s", words[0], v.usage) //nolint:revive,staticcheck // as the real program
	default:
		if words[0] == "quit" {
			return v.do(d, args) // it waits
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		return v.do(d, args)
	}
}

// find is the server with that number. The caller holds d.mu.
func (d *daemon) find(pid string) (*server, error) {
	if d.serving == nil || pid != strconv.Itoa(os.Getpid()) {
		return nil, fmt.Errorf("Invalid server: no server %s", pid) //nolint:revive,staticcheck // as the real program
	}
	return d.serving, nil
}

func (d *daemon) device(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n >= len(d.gpus) {
		return 0, fmt.Errorf("Invalid device: %s; the daemon has %d, counted from 0", s, len(d.gpus)) //nolint:revive,staticcheck // as the real program
	}
	return n, nil
}

func (d *daemon) serverList([]string) (string, error) {
	if d.serving == nil {
		return "", nil
	}
	return fmt.Sprintln(os.Getpid()), nil
}

func (d *daemon) serverStatus(args []string) (string, error) {
	if _, err := d.find(args[0]); err != nil {
		return "", err
	}
	return "ACTIVE\n", nil
}

func (d *daemon) startServerCommand(args []string) (string, error) {
	uid, err := strconv.ParseUint(args[1], 10, 32)
	if args[0] != "-uid" || err != nil {
		return "", fmt.Errorf("Invalid arguments: want start_server -uid UID") //nolint:revive,staticcheck // as the real program
	}
	if d.serving != nil {
		return "", fmt.Errorf("Invalid request: server %d is running", os.Getpid()) //nolint:revive,staticcheck // as the real program
	}
	d.startServer(uint32(uid))
	return "", nil
}

func (d *daemon) shutdownServer(args []string) (string, error) {
	s, err := d.find(args[0])
	if err != nil {
		return "", err
	}
	if len(s.clients) > 0 && (len(args) < 2 || args[1] != "-f") {
		return "", fmt.Errorf("Invalid request: server %s has %d clients; -f ends them", args[0], len(s.clients)) //nolint:revive,staticcheck // as the real program
	}
	for _, c := range s.clients {
		_ = c.conn.Close()
	}
	d.serving = nil
	d.schedule()
	return "", d.publishLocked()
}

func (d *daemon) clientList(args []string) (string, error) {
	s, err := d.find(args[0])
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, c := range s.clients {
		fmt.Fprintln(&b, c.pid)
	}
	return b.String(), nil
}

func (d *daemon) deviceClientList(args []string) (string, error) {
	if len(args) > 0 {
		if _, err := d.find(args[0]); err != nil {
			return "", err
		}
	}
	var b strings.Builder
	for i, uuid := range d.gpus {
		fmt.Fprintf(&b, "%d: %s", i, uuid)
		if d.serving != nil {
			for _, c := range d.serving.clients {
				fmt.Fprintf(&b, " %d", c.pid)
			}
		}
		b.WriteByte('\n')
	}
	return b.String(), nil
}

func (d *daemon) defaultThreads([]string) (string, error) {
	return fmt.Sprintf("%.1f\n", d.defaults.percent()), nil
}

func (d *daemon) setDefaultThreads(args []string) (string, error) {
	p, err := parsePercent(args[0])
	if err != nil {
		return "", fmt.Errorf("Invalid %w", err)
	}
	d.defaults.threads = p
	return fmt.Sprintf("%.1f\n", p), nil
}

func (d *daemon) threads(args []string) (string, error) {
	s, err := d.find(args[0])
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%.1f\n", s.limits.percent()), nil
}

func (d *daemon) setThreads(args []string) (string, error) {
	s, err := d.find(args[0])
	if err != nil {
		return "", err
	}
	p, err := parsePercent(args[1])
	if err != nil {
		return "", fmt.Errorf("Invalid %w", err)
	}
	s.limits.threads = p
	return fmt.Sprintf("%.1f\n", p), nil
}

func (l limits) show(device int) string {
	if bytes, ok := l.memory[device]; ok {
		return formatSize(bytes) + "\n"
	}
	return "No limit\n"
}

func (d *daemon) defaultMemory(args []string) (string, error) {
	device, err := d.device(args[0])
	return d.defaults.show(device), err
}

func (d *daemon) setDefaultMemory(args []string) (string, error) {
	return "", d.limit(&d.defaults, args[0], args[1])
}

func (d *daemon) memory(args []string) (string, error) {
	s, err := d.find(args[0])
	if err != nil {
		return "", err
	}
	device, err := d.device(args[1])
	return s.limits.show(device), err
}

func (d *daemon) setMemory(args []string) (string, error) {
	s, err := d.find(args[0])
	if err != nil {
		return "", err
	}
	return "", d.limit(&s.limits, args[1], args[2])
}

func (d *daemon) limit(l *limits, device, size string) error {
	n, err := d.device(device)
	if err != nil {
		return err
	}
	bytes, err := parseSize(size)
	if err != nil {
		return fmt.Errorf("Invalid %w", err)
	}
	l.set(n, bytes)
	return nil
}

// quit ends the daemon when its clients have left, or after the time.
func (d *daemon) quit(args []string) (string, error) {
	var deadline <-chan time.Time
	if len(args) > 0 {
		seconds, err := strconv.Atoi(args[len(args)-1])
		if len(args) != 2 || args[0] != "-t" || err != nil || seconds < 0 {
			return "", fmt.Errorf("Invalid arguments: want quit [-t TIMEOUT]") //nolint:revive,staticcheck // as the real program
		}
		deadline = time.After(time.Duration(seconds) * time.Second)
	}
	for waiting := true; waiting && d.busy(); {
		select {
		case <-deadline:
			waiting = false
		case <-d.done:
			waiting = false
		case <-time.After(pollPeriod / 5):
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ended {
		d.ended = true
		close(d.done)
	}
	return "", nil
}

func (d *daemon) busy() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.waiting) > 0 || d.serving != nil && len(slices.Clone(d.serving.clients)) > 0
}
