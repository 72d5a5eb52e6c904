// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/gpudra/gpu-dra-driver/internal/event"
	"github.com/gpudra/gpu-dra-driver/internal/plugin/report"
	"github.com/gpudra/gpu-dra-driver/pkg/gpu"
	"github.com/gpudra/gpu-dra-driver/pkg/nodeconfig"
)

const (
	// configLabel is the label of a Node that names its node configuration.
	configLabel = "gpu.nvidia.com/node-config"
	// devicePluginLabel is the label of NVIDIA's device plugin for the same purpose.
	devicePluginLabel = "nvidia.com/device-plugin.config"
	// defaultConfig is the node configuration of a node without labels. It is optional.
	defaultConfig = "default"

	// labelPeriod is how often the labels of the node are read, from the API server's cache: with 1,000 nodes, 50
	// requests per second.
	labelPeriod = 20 * time.Second
	// labelTimeout is the timeout of that request, which delays discovery.
	labelTimeout = 5 * time.Second
)

// configSource reads the node configuration from a directory; a label of the node names the file. It reports each
// mistake once, and meanwhile keeps the last valid configuration.
type configSource struct {
	dir      string // empty: every GPU has its default mode
	labels   func(ctx context.Context) (map[string]string, error)
	reporter *report.Reporter

	cachedLabels map[string]string // all labels of the node; nil: never read
	expires      time.Time         // when cachedLabels expire
	parsed       parsed            // the text that was last read
	inForce      *parsed           // the last valid one; nil: there was none
	reported     map[string]string // the last message of each kind
}

// configText is the text of a node configuration. The zero value means that there is none.
type configText struct{ name, text string }

// parsed is the result of parsing a text.
type parsed struct {
	configText
	config nodeconfig.Config
	err    error
}

func newConfigSource(c Config) *configSource {
	return &configSource{
		dir:      c.ConfigDir,
		labels:   func(ctx context.Context) (map[string]string, error) { return nodeLabels(ctx, c.Client, c.NodeName) },
		reporter: c.Reporter,
		reported: map[string]string{},
	}
}

// nodeLabels reads the labels of a node from the API server's cache.
func nodeLabels(ctx context.Context, client kubernetes.Interface, name string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, labelTimeout)
	defer cancel()
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("read the labels of this node, which name its node configuration: %w", err)
	}
	return node.Labels, nil
}

// current returns the configuration in force. The error says why there is none yet; then it is that of the defaults.
func (s *configSource) current(ctx context.Context) (nodeconfig.Config, error) {
	if s.dir == "" {
		return nodeconfig.Config{}, nil
	}
	now, warnings, err := s.read(ctx)
	if err != nil {
		s.refused(ctx, err)
	} else {
		s.accepted(ctx, now, append(warnings, now.config.Warnings...))
	}
	if s.inForce == nil {
		return nodeconfig.Config{}, err
	}
	return s.inForce.config, nil
}

// read reads the configuration that the labels of the node name.
func (s *configSource) read(ctx context.Context) (_ parsed, warnings []string, _ error) {
	labels, err := s.currentLabels(ctx)
	if err != nil {
		return parsed{}, nil, err
	}
	found, err := s.open(labels[configLabel], labels[devicePluginLabel], defaultConfig)
	switch {
	case err != nil:
		return parsed{}, nil, err
	case labels[configLabel] != "" && found.name != labels[configLabel]:
		return parsed{}, nil, fmt.Errorf("node configuration %s, which the label %s of this node names, is not there",
			labels[configLabel], configLabel)
	case labels[configLabel] == "" && labels[devicePluginLabel] != "" && found.name != labels[devicePluginLabel]:
		// The label may be meant only for the device plugin, which has its own configurations.
		warnings = append(warnings, fmt.Sprintf("the label %s of this node names %s, of which there is no node "+
			"configuration: it is ignored",
			devicePluginLabel, labels[devicePluginLabel]))
	}
	if found != s.parsed.configText {
		s.parsed = parse(found)
	}
	return s.parsed, warnings, s.parsed.err
}

// currentLabels returns the labels of the node. After an error, it returns the last known ones.
func (s *configSource) currentLabels(ctx context.Context) (map[string]string, error) {
	if s.cachedLabels != nil && time.Now().Before(s.expires) {
		return s.cachedLabels, nil
	}
	labels, err := s.labels(ctx)
	if err != nil && s.cachedLabels == nil {
		return nil, err
	}
	s.expires = time.Now().Add(labelPeriod)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Labels of the node not read, will be tried again", "err", err)
		return s.cachedLabels, nil
	}
	s.cachedLabels = map[string]string{} // not nil, even without labels
	maps.Copy(s.cachedLabels, labels)
	return s.cachedLabels, nil
}

// pausedValue is the value that NVIDIA's driver manager gives to labels of the node before it replaces the driver.
const pausedValue = "paused-for-driver-upgrade"

// paused says that the driver is about to be replaced; empty: it is not, or nobody knows.
func (s *configSource) paused(ctx context.Context) string {
	labels, err := s.currentLabels(ctx)
	if label := pausedLabel(labels); err == nil && label != "" {
		return fmt.Sprintf("the label %s of this node says %s", label, pausedValue)
	}
	return ""
}

// pausedLabel returns the first label of NVIDIA's driver manager that says so; empty: none does.
func pausedLabel(labels map[string]string) string {
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if strings.HasPrefix(name, "nvidia.com/") && strings.HasPrefix(labels[name], pausedValue) {
			return name
		}
	}
	return ""
}

// open returns the text of the first configuration that exists.
func (s *configSource) open(names ...string) (configText, error) {
	for _, name := range names {
		if name == "" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(s.dir, name))
		if err == nil {
			return configText{name, string(text)}, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return configText{}, fmt.Errorf("node configuration %s: %w", name, err)
		}
	}
	return configText{}, nil
}

func parse(t configText) parsed {
	if t == (configText{}) {
		return parsed{}
	}
	config, err := nodeconfig.Parse([]byte(t.text))
	if err != nil {
		err = fmt.Errorf("node configuration %s: %w", t.name, err)
	}
	return parsed{t, config, err}
}

// accepted puts a configuration in force.
func (s *configSource) accepted(ctx context.Context, now parsed, warnings []string) {
	if s.inForce == nil || s.inForce.configText != now.configText {
		klog.FromContext(ctx).Info("Node configuration in force", "name", now.name)
	}
	s.inForce = &now
	s.reportOnce(ctx, report.Events.NodeConfigRefused, "")
	s.reportOnce(ctx, report.Events.NodeConfigWarning, strings.Join(warnings, "; "))
}

func (s *configSource) refused(ctx context.Context, err error) {
	meanwhile := "meanwhile the one before stays in force"
	if s.inForce == nil {
		meanwhile = "meanwhile every GPU stays in the mode that it had, and one that had none is not offered"
	}
	s.reportOnce(ctx, report.Events.NodeConfigRefused, oneLine(err)+"; "+meanwhile)
}

// reportOnce writes an event and a log line, unless the text is the last one of its kind.
func (s *configSource) reportOnce(ctx context.Context, e event.Kind, text string) {
	if s.reported[e.Reason] == text {
		return
	}
	s.reported[e.Reason] = text
	if text != "" {
		klog.FromContext(ctx).Info("Node configuration", "reason", e.Reason, "message", text)
		s.reporter.Node(e, text)
	}
}

// logUnmatched logs which parts of a configuration match no GPU of this node. It writes no event: different nodes may
// share a configuration.
func (s *configSource) logUnmatched(ctx context.Context, config nodeconfig.Config, devices []gpu.Device) {
	const kind = "Unmatched"
	text := strings.Join(config.Unmatched(devices), "; ")
	if text != "" && text != s.reported[kind] {
		klog.FromContext(ctx).Info("Parts of the node configuration do nothing on this node", "parts", text)
	}
	s.reported[kind] = text
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
