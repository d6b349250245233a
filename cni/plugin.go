package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

const (
	// requestTimeout limits how long the plugin waits for the agent's reply; the kubelet's timeout
	// is longer.
	requestTimeout = 90 * time.Second
	// agentTimeout limits how long no agent may accept a connection, as during a restart, before
	// the plugin returns an error.
	agentTimeout = 10 * time.Second
	// retryPause is the pause between two attempts to reach the agent.
	retryPause = 20 * time.Millisecond
)

// supported returns the versions of the specification that the plugin supports.
func supported() version.PluginInfo {
	return version.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
}

// Main runs the plugin: parameters from the environment and standard input, the result on standard
// output. about is printed on standard error if there is no CNI_COMMAND.
func Main(about string) {
	call := func(command string) func(*skel.CmdArgs) error {
		return func(a *skel.CmdArgs) error { return forward(command, a) }
	}
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add: call(cmdAdd), Del: call(cmdDel), Check: call(cmdCheck), Status: call(cmdStatus), GC: call(cmdGC),
	}, supported(), about)
}

func forward(command string, a *skel.CmdArgs) error {
	conf, cniErr := parseConf(a.StdinData)
	if cniErr != nil {
		return cniErr
	}
	result, err := callAgent(conf.RunDir, request{
		Command: command, ContainerID: a.ContainerID, Netns: a.Netns, IfName: a.IfName, Args: a.Args,
		Config: a.StdinData,
	})
	if err != nil || command != cmdAdd {
		return err
	}
	r, err := current.NewResult(result)
	if err != nil {
		return fmt.Errorf("result of the agent: %w", err)
	}
	return types.PrintResult(r, conf.CNIVersion)
}

// callAgent sends a request to the agent, and repeats it if the connection fails. All commands can
// be repeated, so the kubelet does not notice a restart of the agent. The time of an agent that
// accepted the request and then ended does not count as time without an agent. STATUS is sent once,
// because it is about the present.
func callAgent(runDir string, r request) ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	var connected atomic.Bool // in this attempt
	client := agentClient(runDir, &connected)
	for lastAgent := time.Now(); ; time.Sleep(retryPause) {
		text, err := post(ctx, client, body)
		if err == nil {
			return parseReply(text)
		}
		if r.Command == cmdStatus {
			return nil, errNotReady(err.Error())
		}
		if connected.Swap(false) {
			lastAgent = time.Now()
		}
		if ctx.Err() != nil || time.Since(lastAgent) > agentTimeout {
			return nil, errTryLater("ask the node's agent", err)
		}
	}
}

// agentClient returns a client of the agent, which sets connected when it connects.
func agentClient(runDir string, connected *atomic.Bool) *http.Client {
	if runDir == "" {
		runDir = "/run/hairpin"
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "unix", filepath.Join(runDir, Socket))
		if err == nil {
			connected.Store(true)
		}
		return c, err
	}
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
}

func post(ctx context.Context, client *http.Client, body []byte) ([]byte, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := client.Do(q)
	if err != nil {
		return nil, errors.Unwrap(err) // without the URL, which has no meaning
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// parseReply extracts the result from a reply.
func parseReply(text []byte) ([]byte, error) {
	var r reply
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("reply of the agent: %w: %s", err, text)
	}
	if r.Error != nil {
		return nil, r.Error
	}
	return r.Result, nil
}
