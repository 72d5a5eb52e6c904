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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	Options
	labels   map[string]string // all labels of the node; nil: never read
	node     types.UID         // of the Node object that they were read from
	expires  time.Time         // when the labels expire
	inForce  *namedConfig      // the last valid one; nil: there was none
	reported map[string]string // the last message of each kind
}

// namedConfig is a node configuration with its text. The zero value means that there is none.
type namedConfig struct {
	name, text string
	nodeconfig.Config
}

// current returns the configuration in force. The error says why there is none yet; then it is that of the defaults.
func (s *configSource) current(ctx context.Context) (nodeconfig.Config, error) {
	if s.ConfigDir == "" {
		return nodeconfig.Config{}, nil
	}
	now, warnings, err := s.read(ctx)
	switch {
	case err == nil:
		if s.inForce == nil || s.inForce.name != now.name || s.inForce.text != now.text {
			klog.FromContext(ctx).Info("Node configuration in force", "name", now.name)
		}
		s.inForce = &now
		s.reportOnce(ctx, report.Events.NodeConfigRefused, "")
		s.reportOnce(ctx, report.Events.NodeConfigWarning, strings.Join(append(warnings, now.Warnings...), "; "))
	case s.inForce == nil:
		s.reportOnce(ctx, report.Events.NodeConfigRefused, oneLine(err)+
			"; meanwhile every GPU stays in the mode that it had, and one that had none is not offered")
		return nodeconfig.Config{}, err
	default:
		s.reportOnce(ctx, report.Events.NodeConfigRefused, oneLine(err)+"; meanwhile the one before stays in force")
	}
	return s.inForce.Config, nil
}

// read reads the configuration that the labels of the node name.
func (s *configSource) read(ctx context.Context) (c namedConfig, warnings []string, err error) {
	labels, err := s.currentLabels(ctx)
	if err != nil {
		return c, nil, err
	}
	c.name, c.text, err = s.open(labels[configLabel], labels[devicePluginLabel], defaultConfig)
	switch {
	case err != nil:
		return c, nil, err
	case labels[configLabel] != "" && c.name != labels[configLabel]:
		return c, nil, fmt.Errorf("node configuration %s, which the label %s of this node names, is not there",
			labels[configLabel], configLabel)
	case labels[configLabel] == "" && labels[devicePluginLabel] != "" && c.name != labels[devicePluginLabel]:
		// The label may be meant only for the device plugin, which has its own configurations.
		warnings = append(warnings, fmt.Sprintf("the label %s of this node names %s, of which there is no node "+
			"configuration: it is ignored",
			devicePluginLabel, labels[devicePluginLabel]))
	}
	if c.name == "" {
		return c, warnings, nil
	}
	if was := s.inForce; was != nil && was.name == c.name && was.text == c.text {
		return *was, warnings, nil
	}
	if c.Config, err = nodeconfig.Parse([]byte(c.text)); err != nil {
		err = fmt.Errorf("node configuration %s: %w", c.name, err)
	}
	return c, warnings, err
}

// open returns the name and the text of the first configuration that exists.
func (s *configSource) open(names ...string) (name, text string, err error) {
	for _, name := range names {
		if name == "" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(s.ConfigDir, name))
		if err == nil {
			return name, string(text), nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", "", fmt.Errorf("node configuration %s: %w", name, err)
		}
	}
	return "", "", nil
}

// currentLabels returns the labels of the node. After an error, it returns the last known ones. If the Node object is
// another one than before, its slices have to be written anew.
func (s *configSource) currentLabels(ctx context.Context) (map[string]string, error) {
	if s.labels != nil && time.Now().Before(s.expires) {
		return s.labels, nil
	}
	limited, cancel := context.WithTimeout(ctx, labelTimeout)
	defer cancel()
	node, err := s.Client.CoreV1().Nodes().Get(limited, s.NodeName, metav1.GetOptions{ResourceVersion: "0"})
	if uid := node.GetUID(); uid != s.node && (err == nil || apierrors.IsNotFound(err)) {
		s.node = uid
		s.Publisher.Stale()
	}
	if err != nil {
		err = fmt.Errorf("read the labels of this node, which name its node configuration: %w", err)
		if s.labels == nil {
			return nil, err
		}
		klog.FromContext(ctx).V(2).Info("Labels of the node not read, will be tried again", "err", err)
	} else {
		s.labels = map[string]string{} // not nil, even without labels
		maps.Copy(s.labels, node.Labels)
	}
	s.expires = time.Now().Add(labelPeriod)
	return s.labels, nil
}

// pausedValue is the value that NVIDIA's driver manager gives to labels of the node before it replaces the driver.
const pausedValue = "paused-for-driver-upgrade"

// paused says that the driver is about to be replaced; empty: it is not, or nobody knows.
func (s *configSource) paused(ctx context.Context) string {
	labels, _ := s.currentLabels(ctx) // current reports the error
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if strings.HasPrefix(name, "nvidia.com/") && strings.HasPrefix(labels[name], pausedValue) {
			return fmt.Sprintf("the label %s of this node says %s", name, pausedValue)
		}
	}
	return ""
}

// reportOnce writes an event and a log line, unless the text is the last one of its kind.
func (s *configSource) reportOnce(ctx context.Context, e event.Kind, text string) {
	if s.reported[e.Reason] == text {
		return
	}
	s.reported[e.Reason] = text
	if text != "" {
		klog.FromContext(ctx).Info("Node configuration", "reason", e.Reason, "message", text)
		s.Reporter.Node(e, text)
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
