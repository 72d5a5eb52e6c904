// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// result is the daemon's answer to a command. The exit code of the program that sends it is always 0.
type result struct {
	Text string
}

// serveCommands answers commands, one per line.
func (d *daemon) serveCommands(conn net.Conn) {
	d.logf("NEW UI")
	defer d.logf("UI closed")
	out := json.NewEncoder(conn)
	for in := bufio.NewScanner(conn); in.Scan(); {
		d.logf("Cmd:%s", in.Text())
		text, err := d.command(strings.Fields(in.Text()))
		if err != nil {
			d.logf("%v", err)
			var a answer
			if errors.As(err, &a) {
				text += err.Error() + "\n"
			}
		}
		if out.Encode(result{Text: text}) != nil {
			return
		}
	}
}

// answer is an error that is answered; others are only logged, so that the command seems to succeed.
type answer string

func (a answer) Error() string { return string(a) }

// errDevice is logged for a device that the daemon does not have.
var errDevice = errors.New("Invalid device ordinal!") //nolint:revive,staticcheck // as the real program

// errPercentage is logged for a percentage out of range.
var errPercentage = errors.New("Invalid percentage, expected between (0.0, 100.0]") //nolint:revive,staticcheck // as the real program

// command is a command of the daemon: the number of its arguments and its function.
type command struct {
	args int // missing ones are empty, and more are ignored
	do   func(d *daemon, args []string) (string, error)
}

var commands = map[string]command{
	"get_server_list":                      {0, (*daemon).serverList},
	"get_server_status":                    {1, (*daemon).serverStatus},
	"start_server":                         {2, (*daemon).startServerCommand},
	"shutdown_server":                      {2, (*daemon).shutdownServer},
	"get_client_list":                      {1, (*daemon).clientList},
	"get_device_client_list":               {1, (*daemon).deviceClientList},
	"get_default_active_thread_percentage": {0, (*daemon).defaultThreads},
	"set_default_active_thread_percentage": {1, (*daemon).setDefaultThreads},
	"get_active_thread_percentage":         {1, (*daemon).threads},
	"set_active_thread_percentage":         {2, (*daemon).setThreads},
	"get_default_device_pinned_mem_limit":  {1, (*daemon).defaultMemory},
	"set_default_device_pinned_mem_limit":  {2, (*daemon).setDefaultMemory},
	"get_device_pinned_mem_limit":          {2, (*daemon).memory},
	"set_device_pinned_mem_limit":          {3, (*daemon).setMemory},
	"quit":                                 {2, (*daemon).quit},
}

func (d *daemon) command(words []string) (string, error) {
	words = append(words, "")
	v, ok := commands[words[0]]
	if !ok {
		return "", answer(fmt.Sprintf("Unknown command %q", words[0]))
	}
	args := append(words[1:], make([]string, v.args)...)[:v.args]
	if words[0] == "quit" {
		return v.do(d, args) // it waits
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return v.do(d, args)
}

// find returns the server with that PID. The caller holds d.mu.
func (d *daemon) find(pid string) (*server, error) {
	if d.serving == nil || pid != strconv.Itoa(os.Getpid()) {
		return nil, answer(fmt.Sprintf("Server %s not found", pid))
	}
	return d.serving, nil
}

func (d *daemon) device(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n >= len(d.gpus) {
		return 0, errDevice
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
		return "", answer("A user id (UID) is required to start a new server")
	}
	if d.serving != nil {
		return "", fmt.Errorf("server %d is running", os.Getpid())
	}
	d.startServer(uint32(uid))
	return "", nil
}

func (d *daemon) shutdownServer(args []string) (string, error) {
	s, err := d.find(args[0])
	if err != nil {
		return "", err
	}
	if len(s.clients) > 0 && args[1] != "-f" {
		return "", fmt.Errorf("server %s has %d clients; -f ends them", args[0], len(s.clients))
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
	if args[0] != "" {
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
	return d.defaults.setPercent(args[0])
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
	return s.limits.setPercent(args[1])
}

// setPercent answers the percentage that is in force then, which is the one before if this one is out of range.
func (l *limits) setPercent(text string) (string, error) {
	p, err := parsePercent(text)
	if err == nil {
		l.threads = p
	} else {
		err = errPercentage
	}
	return fmt.Sprintf("%.1f\n", l.percent()), err
}

func (l limits) show(device int) (string, error) {
	if bytes, ok := l.memory[device]; ok {
		return formatSize(bytes) + "\n", nil
	}
	return "", errors.New("No default pinned memory limit set for the device!") //nolint:revive,staticcheck // as the real program
}

func (d *daemon) defaultMemory(args []string) (string, error) {
	device, err := d.device(args[0])
	if err != nil {
		return "", err
	}
	return d.defaults.show(device)
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
	if err != nil {
		return "", err
	}
	return s.limits.show(device)
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
	if bytes := commandSize(size); bytes > 0 {
		l.set(n, bytes)
	}
	return nil
}

// quit ends the daemon when its clients have left, or after the timeout.
func (d *daemon) quit(args []string) (string, error) {
	var deadline <-chan time.Time
	if seconds, err := strconv.Atoi(args[1]); args[0] == "-t" && err == nil && seconds >= 0 {
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
	return len(d.waiting) > 0 || d.serving != nil && len(d.serving.clients) > 0
}
