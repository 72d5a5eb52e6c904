// SPDX-License-Identifier: Apache-2.0

package residue

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const sysctlRoot = "/proc/sys"

// moving maps sysctls that change by themselves to the reason. The first six were observed on an idle machine; the
// others are documented by the kernel.
var moving = map[string]string{
	"fs.dentry-state":                   "count of cached names",
	"fs.inode-nr":                       "count of cached files",
	"fs.inode-state":                    "count of cached files",
	"fs.file-nr":                        "count of open files",
	"kernel.ns_last_pid":                "number of the last process",
	"kernel.random.uuid":                "a new one for each reader",
	"fs.aio-nr":                         "count of requests in flight",
	"kernel.hung_task_detect_count":     "count of events",
	"kernel.perf_event_max_sample_rate": "lowered by the kernel when sampling takes too long",
	"kernel.pty.nr":                     "count of open terminals",
	"kernel.random.entropy_avail":       "estimate of gathered randomness",
	"net.netfilter.nf_conntrack_count":  "count of connections",
}

// movingPatterns is the same for families of sysctls.
var movingPatterns = []struct {
	pattern *regexp.Regexp
	reason  string
}{
	{regexp.MustCompile(`^fs\.quota\.`), "counts of quota operations; syncs was seen to change"},
	{regexp.MustCompile(`^sunrpc\.transports$`), "list of modules in use"},
}

// sysctls reads every readable sysctl. Some fail in spite of their mode; they always do, and are left out.
func sysctls() ([]string, error) {
	var lines []string
	err := filepath.WalkDir(sysctlRoot, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // it went while we looked: a link, say; the next snapshot tells
		}
		name := strings.ReplaceAll(strings.TrimPrefix(path, sysctlRoot+"/"), "/", ".")
		if moves(name) {
			return nil
		}
		if data, err := os.ReadFile(path); err == nil {
			lines = append(lines, "sysctl "+name+" = "+printable(string(data)))
		}
		return nil
	})
	return lines, err
}

func moves(name string) bool {
	if _, ok := moving[name]; ok {
		return true
	}
	for _, m := range movingPatterns {
		if m.pattern.MatchString(name) {
			return true
		}
	}
	return false
}
