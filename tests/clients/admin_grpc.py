"""A client of the administration API made from the protos alone, as another team would make one.

`--base-url` is host:port of a control plane, `--key` a token that may manage, `--model` what to ask for.
"""

import pathlib
import sys
import tempfile

import grpc
from grpc_tools import protoc

import client_run

PROTOS = pathlib.Path(__file__).resolve().parents[2] / "proto"


def generate(folder):
    """Makes the client's code and puts it where Python finds it."""
    files = [str(path) for path in sorted(PROTOS.glob("tidegate/**/*.proto"))]
    options = ["protoc", f"--proto_path={PROTOS}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    # What Google ships comes with the tools.
    includes = f"--proto_path={pathlib.Path(protoc.__file__).parent / '_proto'}"
    if protoc.main([*options, includes, *files]) != 0:
        raise SystemExit("the protos do not compile")
    sys.path.insert(0, folder)


def main():
    modes = ["breakers", "connections", "explain", "reset", "refused"]
    args = client_run.parse_args(__doc__, modes, modes[:4])
    with tempfile.TemporaryDirectory() as folder:
        generate(folder)
        from tidegate.admin.v1 import admin_pb2, admin_pb2_grpc

        channel = grpc.insecure_channel(args.base_url)
        admin = admin_pb2_grpc.AdminServiceStub(channel)
        shown = {"timeout": args.timeout, "metadata": [("authorization", f"Bearer {args.key}")]}

        def provider(model):
            return model.split("/", 1)[0]

        def breakers(_model, _progress):
            listed = admin.ListBreakers(admin_pb2.ListBreakersRequest(), **shown)
            return {"breakers": {it.provider: it.state for it in listed.breakers}}

        def connections(_model, _progress):
            # One at a time, so that the pages are used.
            ids, token = [], ""
            while True:
                request = admin_pb2.ListConnectionsRequest(page_size=1, page_token=token)
                page = admin.ListConnections(request, **shown)
                ids += [it.id for it in page.connections]
                token = page.next_page_token
                if not token:
                    return {"connections": ids}

        def explain(model, _progress):
            told = admin.Explain(admin_pb2.ExplainRequest(model=model), **shown)
            targets = [
                {"connection": it.connection, "chosen": it.chosen, "excluded": [why.reason for why in it.exclusions]}
                for it in told.targets
            ]
            return {"decision": told.decision, "targets": targets}

        def reset(model, _progress):
            request = admin_pb2.ResetRequest(scope=admin_pb2.RESET_SCOPE_BREAKERS, provider=provider(model))
            return {"reset": admin.Reset(request, **shown).reset_count}

        def refused(_model, _progress):
            """What is wrong comes as a status with details that are not ours alone."""
            from google.rpc import error_details_pb2, status_pb2

            try:
                admin.ListBreakers(admin_pb2.ListBreakersRequest(page_size=1_000_000), **shown)
            except grpc.RpcError as error:
                facts = {"status": error.code().name}
                metadata = dict(error.trailing_metadata())
                status = status_pb2.Status.FromString(metadata["grpc-status-details-bin"])
                for detail in status.details:
                    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
                    if detail.Unpack(info):
                        facts["reason"] = info.reason
                    if detail.Unpack(bad):
                        facts["fields"] = [it.field for it in bad.field_violations]
                return facts
            raise AssertionError("an oversize page is taken")

        known = {
            "breakers": breakers,
            "connections": connections,
            "explain": explain,
            "reset": reset,
            "refused": refused,
        }
        return client_run.run_modes(args, known)


if __name__ == "__main__":
    sys.exit(main())
