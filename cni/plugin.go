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
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// patience is how long the plugin waits for the agent; the kubelet gives up later than that.
const patience = 90 * time.Second

// supported are the versions of the specification that the plugin speaks.
func supported() version.PluginInfo {
	return version.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
}

// Main runs the plugin: parameters from the environment and standard input, the result on standard output. about is
// told on VERSION without parameters.
func Main(about string) {
	call := func(command string) func(*skel.CmdArgs) error {
		return func(a *skel.CmdArgs) error { return forward(command, a) }
	}
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add: call(cmdAdd), Del: call(cmdDel), Check: call(cmdCheck), Status: call(cmdStatus), GC: call(cmdGC),
	}, supported(), about)
}

func forward(command string, a *skel.CmdArgs) error {
	var conf netConf
	if err := json.Unmarshal(a.StdinData, &conf); err != nil {
		return types.NewError(types.ErrDecodingFailure, "network configuration", err.Error())
	}
	result, err := ask(conf.RunDir, request{
		Command: command, ContainerID: a.ContainerID, Netns: a.Netns, IfName: a.IfName, Args: a.Args, Config: a.StdinData,
	})
	if err != nil || command != cmdAdd {
		return err
	}
	r, convErr := current.NewResult(result)
	if convErr != nil {
		return fmt.Errorf("result of the agent: %w", convErr)
	}
	return types.PrintResult(r, conf.CNIVersion)
}

// ask sends a request to the agent. That no agent listens is "not available" for STATUS and "try again" for the rest.
func ask(runDir string, r request) ([]byte, error) {
	if runDir == "" {
		runDir = "/run/hairpin"
	}
	socket := filepath.Join(runDir, Socket)
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/", bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	answer, err := client.Do(q)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) || r.Command == cmdStatus {
			return nil, errNotReady(fmt.Sprintf("nobody listens on %s: %v", socket, err))
		}
		return nil, errTryLater("ask the node's agent", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, errTryLater("ask the node's agent", err)
	}
	var got reply
	if err := json.Unmarshal(text, &got); err != nil {
		return nil, fmt.Errorf("answer of the agent: %w: %s", err, text)
	}
	if got.Error != nil {
		return nil, got.Error
	}
	return got.Result, nil
}
