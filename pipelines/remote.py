"""Remote folders: how to reach them where no pipeline has said so, and how to write a file only if there is none.

Beam's file systems replace a file that is there. For a manifest that would be a second release, so the stores are asked
themselves: both take a condition with a write, and judge it where the file is.
"""

from __future__ import annotations

from collections.abc import Sequence

from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions


def reach(beam_options: Sequence[str] = ()) -> None:
    """Use these options of Beam from now on; without any, those that are in use, or none.

    The file system of S3 cannot be opened before it is told that there are no options.
    """
    if beam_options:
        from tidegate.pipelines.runners import choose  # slow to import, and seldom needed

        FileSystems.set_options(choose("direct", beam_options, endless=False).options)
    elif FileSystems._pipeline_options is None:
        FileSystems.set_options(PipelineOptions([]))


def create(path: str, data: bytes) -> bool:
    """Write a file that is not there; False if it is."""
    reach()
    kind, _, rest = path.partition("://")
    bucket, _, name = rest.partition("/")
    if kind == "gs":
        return _create_in_google(bucket, name, data)
    if kind == "s3":
        return _create_in_amazon(bucket, name, data)
    # No condition is known for other stores: of two writers at the same moment, the last would win.
    if FileSystems.exists(path):
        return False
    with FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        file.write(data)
    return True


def _create_in_google(bucket: str, name: str, data: bytes) -> bool:
    from apache_beam.io.gcp.gcsio import GcsIO
    from google.api_core.exceptions import PreconditionFailed

    blob = GcsIO(pipeline_options=FileSystems._pipeline_options).client.bucket(bucket).blob(name)
    try:
        blob.upload_from_string(data, content_type="application/json", if_generation_match=0)
    except PreconditionFailed:
        return False
    return True


def _create_in_amazon(bucket: str, name: str, data: bytes) -> bool:
    from apache_beam.io.aws.clients.s3.boto3_client import Client
    from botocore.exceptions import ClientError

    client = Client(options=FileSystems._pipeline_options).client
    try:
        client.put_object(Bucket=bucket, Key=name, Body=data, ContentType="application/json", IfNoneMatch="*")
    except ClientError as refused:
        if refused.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 412:
            return False
        raise OSError(f"S3 answers {refused.response.get('Error', {}).get('Code')}") from None
    return True
