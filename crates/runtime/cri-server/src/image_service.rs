//! CRI's service for images.

use pulselet_cri_wire::v1;
use pulselet_cri_wire::v1::image_service_server::ImageService;
use tonic::{Request, Response, Status};

use crate::service::Service;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl ImageService for Service {
    async fn list_images(&self, request: Request<v1::ListImagesRequest>) -> Answer<v1::ListImagesResponse> {
        let images = self.list_images(request.into_inner().filter).await?;
        Ok(Response::new(v1::ListImagesResponse { images }))
    }

    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Answer<v1::ImageStatusResponse> {
        let answer = self.describe_image(request.get_ref()).await?;
        Ok(Response::new(answer))
    }

    async fn pull_image(&self, request: Request<v1::PullImageRequest>) -> Answer<v1::PullImageResponse> {
        let image_ref = self.pull_image(request.into_inner()).await?;
        Ok(Response::new(v1::PullImageResponse { image_ref }))
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Answer<v1::RemoveImageResponse> {
        self.remove_image(request.get_ref().image.as_ref()).await?;
        Ok(Response::new(v1::RemoveImageResponse {}))
    }

    async fn image_fs_info(&self, _: Request<v1::ImageFsInfoRequest>) -> Answer<v1::ImageFsInfoResponse> {
        Ok(Response::new(self.image_fs().await?))
    }
}
